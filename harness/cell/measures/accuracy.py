"""Accuracy: the captured results against the op in FP64, by case and tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell import capture
from harness.cell.measures.bench import Bench, Impossible
from harness.cell.op import load_module

Doubles = npt.NDArray[np.float64]

_FORMATS = {"F64": (53, -1022), "F32": (24, -126), "F16": (11, -14), "BF16": (8, -126)}
"""Significant bits, and the exponent of the smallest normal number."""
_BLOCK = 1 << 18


def measure(bench: Bench, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The largest and the RMS error, absolute and as shares of the reference's RMS (`scale`), and errors in ULPs.

    The reference is the op folder's `exact.py`, in NumPy's FP64 whatever the mode does. An ULP is the distance of the
    result's format at the reference's value. Elements that aren't finite are counted and left out.

    Raises Impossible for an op without that file.
    """
    del settings
    path = bench.job.op_folder / "exact.py"
    if not path.is_file():
        raise Impossible(f"op {bench.op.name} has no exact.py, the operator in FP64")
    exact = load_module(path, f"bitmatrix_exact_{bench.op.name}").exact
    formats = {tensor.name: tensor.dtype for tensor in bench.op.results()}
    cases: dict[str, Any] = {}
    for case in bench.job.cases:
        if bench.late:
            return {"cases": cases, "complete": False}
        truth = exact(bench.inputs.at(case))
        captured = capture.read(bench.job.output / f"case-{case}.safetensors")
        cases[str(case)] = {
            name: errors(captured[name], np.asarray(truth.pop(name), np.float64).reshape(-1), dtype)
            for name, dtype in formats.items()
            if dtype in _FORMATS
        }
    return {"cases": cases, "complete": True}


def errors(found: npt.NDArray[Any], truth: Doubles, dtype: str) -> dict[str, Any]:
    """The errors of one tensor, flat, in a format of _FORMATS (BF16 as its bits), against float64 of the same size."""
    precision, lowest = _FORMATS[dtype]
    largest = squares = scale = 0.0
    largest_ulp, finite = 0.0, 0
    ulps = np.empty(truth.size, np.float32)
    for start in range(0, truth.size, _BLOCK):
        ours, wanted = _values(found[start : start + _BLOCK], dtype), truth[start : start + _BLOCK]
        good = np.isfinite(ours) & np.isfinite(wanted)
        if not good.all():
            ours, wanted = ours[good], wanted[good]
        if not ours.size:
            continue
        error = np.abs(ours - wanted)
        exponent = np.maximum(np.frexp(wanted)[1] - 1, lowest)
        in_ulps = np.ldexp(error, precision - 1 - exponent)
        largest = max(largest, float(error.max()))
        largest_ulp = max(largest_ulp, float(in_ulps.max()))
        squares += float(np.dot(error, error))
        scale += float(np.dot(wanted, wanted))
        ulps[finite : finite + ours.size] = np.minimum(in_ulps, np.finfo(np.float32).max)
        finite += ours.size
    count = max(1, finite)
    return {
        "scale": (scale / count) ** 0.5,
        "max_abs": largest,
        "rms_abs": (squares / count) ** 0.5,
        "max_ulp": largest_ulp,
        "median_ulp": float(np.median(ulps[:finite])) if finite else 0.0,
        "not_finite": truth.size - finite,
    }


def _values(found: npt.NDArray[Any], dtype: str) -> Doubles:
    if dtype == "BF16":
        return (found.astype("<u4") << 16).view("<f4").astype(np.float64)
    return found.astype(np.float64)
