"""Repeatability: the same call again in the same process must return the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from harness.cell.measures.bench import Bench, bytes_of


def measure(bench: Bench, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Call each case `calls` times more; `differ` counts, by case and tensor, the calls with other bits.

    The captures' own calls came first, so a buffer, a cache or a workspace that the process has made since is there.
    """
    differ: dict[str, dict[str, int]] = {}
    done = 0
    for _ in range(int(settings["calls"])):
        for case in bench.job.cases:
            if bench.late:
                return {"calls": done, "differ": differ, "complete": False}
            claimed = bench.claims.tensors[str(case)]
            results = bench.run(bench.inputs.at(case))
            for name, facts in claimed.items():
                if hashlib.sha256(bytes_of(name, results[name], case).data).hexdigest() != facts["sha256"]:
                    counts = differ.setdefault(str(case), {})
                    counts[name] = counts.get(name, 0) + 1
            del results
        done += 1
    return {"calls": done, "differ": differ, "complete": True}
