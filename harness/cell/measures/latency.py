"""Latency: forward, and forward with backward, by case: warmed, the median of many calls."""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.cell.measures.bench import Bench, synchronize

_FEWEST = 3


def measure(bench: Bench, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Time `repeats` calls after `warmup` others, each figure for at most `seconds` and at least three calls.

    Inputs are placed before: no transfer is timed. On cuda by events around each call, else by the monotonic clock.
    Figures are microseconds. `load` is the host's load average before and after: who else computed.
    """
    cuda = bench.job.device == "cuda"
    cases: dict[str, Any] = {}
    before = os.getloadavg()[0]
    for case in bench.job.cases:
        if bench.late:
            break
        placed = bench.steps.place(bench.inputs.at(case))
        calls = {"forward": bench.steps.forward, "whole": bench.steps.whole}
        cases[str(case)] = {
            name: _timed(functools.partial(call, placed), settings, cuda=cuda) if call else None
            for name, call in calls.items()
        }
    return {
        "clock": "CUDA events" if cuda else "monotonic clock",
        "load": [round(before, 2), round(os.getloadavg()[0], 2)],
        "cases": cases,
        "complete": len(cases) == len(bench.job.cases),
    }


def _timed(call: Callable[[], object], settings: Mapping[str, Any], *, cuda: bool) -> dict[str, Any]:
    until = time.monotonic() + float(settings["seconds"])
    for _ in range(int(settings["warmup"])):
        call()
        synchronize()
        if time.monotonic() > until:
            break
    once = _event if cuda else _clock
    until = time.monotonic() + float(settings["seconds"])
    found: list[float] = []
    while len(found) < int(settings["repeats"]) and (len(found) < _FEWEST or time.monotonic() < until):
        found.append(once(call))
    return {
        "median_us": round(statistics.median(found), 3),
        "min_us": round(min(found), 3),
        "max_us": round(max(found), 3),
        "repeats": len(found),
    }


def _clock(call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def _event(call: Callable[[], object]) -> float:
    torch = sys.modules["torch"]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
