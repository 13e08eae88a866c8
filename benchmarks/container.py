"""A cell in a container against the same cell as a plain process of its lock: at most 1.1 times, start included."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import capture, cli
from harness.workspace import REPOSITORY

PROMISED_RATIO = 1.1

Seconds = dict[str, list[float]]
"""Wall seconds by cell, one a repeat."""


def measure(*, repeats: int) -> bool:
    """Run the CPU matrix's full sweep in both isolations, in turn; whether the promise holds for every cell.

    The plain process is venv isolation's, which is started as host isolation's is but holds exactly the image's lock.
    """
    found: dict[str, Seconds] = {"docker": {}, "venv": {}}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_out()) as out:
        for repeat in range(repeats + 1):
            for isolation, seconds in found.items():
                # Creating a container flushes the disk, and with it what an earlier run left to be written.
                os.sync()
                options = ["--out", out, "--device", "cpu", "--isolation", isolation, "--fresh"]
                if cli.main(["matrix", *options]) == cli.BAD_INPUT:
                    return False
                for cell, measured in _seconds(Path(out, "latest").resolve()):
                    if repeat:  # the first fills the page cache
                        seconds.setdefault(cell, []).append(measured)
    return _table(found["docker"], found["venv"], repeats)


def _seconds(run: Path) -> Iterator[tuple[str, float]]:
    for record in sorted(run.glob("*/record.json")):
        yield record.parent.name, capture.read(record.parent).seconds


def _table(docker: Seconds, plain: Seconds, repeats: int) -> bool:
    ratios = {}
    for cell in docker.keys() & plain.keys():
        contained, alone = statistics.median(docker[cell]), statistics.median(plain[cell])
        ratios[cell] = contained / alone
        print(f"container: {cell}: docker {contained:.2f} s, plain process {alone:.2f} s, ratio {ratios[cell]:.3f}")
    worst = max(ratios, key=lambda cell: ratios[cell])
    print(
        f"container: medians of {repeats}; worst {worst} {ratios[worst]:.3f} (promised {PROMISED_RATIO} for every cell)"
    )
    return ratios[worst] <= PROMISED_RATIO


def _out() -> Path:
    folder = REPOSITORY / "out"
    folder.mkdir(exist_ok=True)
    return folder
