"""Precision probe: how many significant bits the mode's own path keeps, told by numbers that are exact or are not.

(1 + 2**-k) needs k + 1 significant bits. A path that returns it for every k below p, and not for k = p, keeps p bits:
24 in FP32, 11 in TF32 and FP16, 8 in BF16. The op folder's `precision.py` makes inputs that carry these numbers through
its matrix products alone, so whatever the mode did to those products shows, and no flag has to be believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.cell import capture
from harness.cell.measures.bench import Bench, Impossible
from harness.cell.op import load_module


def measure(bench: Bench, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Bits kept, by case and path. Raises Impossible for an op without the file."""
    del settings
    path = bench.job.op_folder / "precision.py"
    if not path.is_file():
        raise Impossible(f"op {bench.op.name} has no precision.py, inputs that show how many bits its path keeps")
    probe = load_module(path, f"bitmatrix_precision_{bench.op.name}").probe
    cases: dict[str, dict[str, int]] = {}
    for case in bench.job.cases:
        if bench.late:
            return {"bits": cases, "complete": False}
        inputs, readings = probe(case)
        results = bench.run(inputs)
        cases[str(case)] = {name: _bits(results, reading, case) for name, reading in readings.items()}
    return {"bits": cases, "complete": True}


def _bits(results: Mapping[str, Any], reading: tuple[str, Any, Any], case: int) -> int:
    """How many of the expected numbers came back, counted up to the first that didn't."""
    name, index, expected = reading
    raw = capture.raw(name, results[name], case)
    if raw.dtype not in ("F32", "F64"):
        raise Impossible(f"{name} is {raw.dtype}; the probe reads F32 and F64")
    values = np.frombuffer(raw.data, "<f4" if raw.dtype == "F32" else "<f8").reshape(raw.shape)[index]
    kept = np.asarray(values) == np.asarray(expected, values.dtype)
    return int(kept.size if kept.all() else np.argmin(kept))
