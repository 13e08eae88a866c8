"""`nox -s matrix` with nothing changed: runs no cell, and ends within 5 s of nox's own start."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness.workspace import REPOSITORY

PROMISED_SECONDS = 5


def measure(*, repeats: int) -> bool:
    """Time a run with nothing to do, over nox listing its sessions; whether the promise holds."""
    _nox("-s", "matrix", "--", "--device", "cpu")
    started, whole = [], []
    for _ in range(repeats):
        started.append(_nox("-l")[0])
        seconds, said = _nox("-s", "matrix", "--", "--device", "cpu")
        whole.append(seconds)
        again = [
            line for line in said.splitlines() if line.startswith("[") and "kept" not in line and " in stack " in line
        ]
        if again:
            print(f"resume: ran again: {again}")
            return False
    taken = statistics.median(whole) - statistics.median(started)
    print(
        f"resume: {statistics.median(whole):.2f} s, nox alone {statistics.median(started):.2f} s "
        f"(medians of {repeats}): {taken:.2f} s (promised {PROMISED_SECONDS} s)"
    )
    return taken <= PROMISED_SECONDS


def _nox(*arguments: str) -> tuple[float, str]:
    clock = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "nox", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return time.perf_counter() - clock, done.stdout + done.stderr
