"""Measures: what a cell shows of itself beside its captures, each optional and each on its own.

They run in the cell's own process, in its mode, after every case is captured. One that can't be taken says why and
takes neither the captures nor the others with it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from harness.cell.claims import Claims
from harness.cell.inputs import Inputs
from harness.cell.job import Job
from harness.cell.measures import accuracy, invariance, latency, precision, repeatability
from harness.cell.measures.bench import Bench, Impossible
from harness.cell.op import Op, Run, Unavailable

MARK = "measuring"
"""A file in the output folder while measures run: a process that dies then had captured every case."""

_MEASURES: Mapping[str, Callable[[Bench, Mapping[str, Any]], dict[str, Any]]] = {
    "repeatability": repeatability.measure,
    "batch_invariance": invariance.measure,
    "accuracy": accuracy.measure,
    "latency": latency.measure,
    "precision": precision.measure,
}


def take(job: Job, op: Op, run: Run, inputs: Inputs, claims: Claims) -> None:
    """Take the job's measures, in its order; each one's status, reason, seconds and result go into `claims`."""
    if not job.measures:
        return
    mark = job.output / MARK
    mark.touch()
    for name, settings in job.measures.items():
        bench = Bench(
            job=job, op=op, run=run, inputs=inputs, claims=claims, until=time.monotonic() + job.measure_seconds
        )
        with claims.phase(f"measure {name}"):
            taken = _one(name, bench, settings)
        claims.measures[name] = {**taken, "seconds": claims.seconds[f"measure {name}"]}
    mark.unlink()


def _one(name: str, bench: Bench, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"status": "done", "reason": None, "result": _MEASURES[name](bench, settings)}
    except (Impossible, Unavailable) as error:
        return {"status": "unavailable", "reason": str(error), "result": None}
    # SystemExit too: the captures are taken, and nothing that a measure calls may lose them.
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        words = "".join(traceback.format_exception_only(type(error), error)).strip()
        return {"status": "failed", "reason": words[:2000], "result": None}
