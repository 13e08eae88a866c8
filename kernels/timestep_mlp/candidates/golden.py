"""The operator in FP64 through NumPy's matrix products, each result rounded once to FP32: what the bits approximate.

Its own bits depend on NumPy's BLAS and the processor, so they are compared, never pinned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell.op import Context, Steps, load_module

_exact = load_module(Path(__file__).parents[1] / "exact.py", "bitmatrix_golden_exact").exact


def load(context: Context) -> Steps:
    """Forward and backward on the CPU; FP32 inputs and results as op.py declares them."""
    del context  # NumPy works on the CPU whatever the device, with the threads that the environment declares.
    return Steps(place=dict, forward=None, whole=_whole)


def _whole(inputs: Mapping[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    results = _exact(inputs)
    return {name: np.ascontiguousarray(results.pop(name), dtype=np.float32) for name in list(results)}
