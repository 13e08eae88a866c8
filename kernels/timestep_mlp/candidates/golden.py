"""The operator in FP64 through NumPy's matrix products, each result rounded once to FP32: what the bits approximate.

Its own bits depend on NumPy's BLAS and the processor, so they are compared, never pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell.op import Context, Run

Doubles = npt.NDArray[np.float64]


def load(context: Context) -> Run:
    """A run of forward and backward on the CPU; FP32 inputs and results as op.py declares them."""
    del context  # NumPy works on the CPU whatever the device, with the threads that the environment declares.
    return _run


def _run(inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    x, w1, b1, w2, b2, upstream = (
        np.asarray(inputs[name], dtype=np.float64) for name in ("x", "w1", "b1", "w2", "b2", "upstream")
    )
    z = x @ w1.T + b1
    sigmoid = _sigmoid(z)
    hidden = z * sigmoid
    results = {"out": _rounded(hidden @ w2.T + b2), "grads.w2": _rounded(upstream.T @ hidden)}
    del hidden
    # silu'(z) = s + z s (1 - s), and 1 - s loses nothing as sigmoid(-z).
    dz = (upstream @ w2) * (sigmoid * (1 + z * _sigmoid(-z)))
    return results | {
        "grads.x": _rounded(dz @ w1),
        "grads.w1": _rounded(dz.T @ x),
        "grads.b1": _rounded(dz.sum(axis=0)),
        "grads.b2": _rounded(upstream.sum(axis=0)),
    }


def _sigmoid(z: Doubles) -> Doubles:
    """1 / (1 + exp(-z)), with an exponential that can't overflow."""
    small = np.exp(-np.abs(z))
    result: Doubles = np.where(z >= 0, 1.0, small) / (1 + small)
    return result


def _rounded(values: Doubles) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)
