"""The operator in FP64 through NumPy's matrix products: what every result approximates.

Its last bits depend on NumPy's BLAS and the processor; they lie 29 bits below those of FP32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def exact(inputs: Mapping[str, Any]) -> dict[str, Doubles]:
    """Inputs by name as op.py declares them (float32) -> every result by name, in float64 and its declared shape."""
    x, w1, b1, w2, b2, upstream = (
        np.asarray(inputs[name], dtype=np.float64) for name in ("x", "w1", "b1", "w2", "b2", "upstream")
    )
    z = x @ w1.T + b1
    sigmoid = _sigmoid(z)
    hidden = z * sigmoid
    # silu'(z) = s + z s (1 - s), and 1 - s loses nothing as sigmoid(-z).
    dz = (upstream @ w2) * (sigmoid * (1 + z * _sigmoid(-z)))
    return {
        "out": hidden @ w2.T + b2,
        "grads.x": dz @ w1,
        "grads.w1": dz.T @ x,
        "grads.b1": dz.sum(axis=0),
        "grads.w2": upstream.T @ hidden,
        "grads.b2": upstream.sum(axis=0),
    }


def _sigmoid(z: Doubles) -> Doubles:
    """1 / (1 + exp(-z)), with an exponential that can't overflow."""
    small = np.exp(-np.abs(z))
    result: Doubles = np.where(z >= 0, 1.0, small) / (1 + small)
    return result
