"""A cell in a container against the same cell as a plain process of its lock, start included.

At most 1.1 times. A container's start and end take some tenths of a second whatever the cell does, so with
`--no-measures`, where captures alone take a short cell a few seconds, those may be more than a tenth: at most 0.4 s.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import capture, cli
from harness.workspace import REPOSITORY

PROMISED_RATIO = 1.1
PROMISED_SECONDS = 0.4

Seconds = dict[str, list[float]]
"""Wall seconds by cell, one a repeat."""


def measure(*, repeats: int, measures: bool) -> bool:
    """Run the CPU matrix's full sweep in both isolations, in turn; whether the promise holds for every cell.

    `measures`: with all that the matrix declares, as `nox -s matrix` runs it (minutes a cell), else captures alone.

    The plain process is venv isolation's, which is started as host isolation's is but holds exactly the image's lock.
    """
    found: dict[str, Seconds] = {"docker": {}, "venv": {}}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_out()) as out:
        for repeat in range(repeats + 1):
            for isolation, seconds in found.items():
                # Creating a container flushes the disk, and with it what an earlier run left to be written.
                os.sync()
                options = ["--out", out, "--device", "cpu", "--isolation", isolation, "--fresh"]
                options += [] if measures else ["--no-measures"]
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
    kept = True
    for cell in sorted(docker.keys() & plain.keys()):
        contained, alone = statistics.median(docker[cell]), statistics.median(plain[cell])
        ratio, more = contained / alone, contained - alone
        kept &= ratio <= PROMISED_RATIO or more <= PROMISED_SECONDS
        times = f"docker {contained:.2f} s, plain process {alone:.2f} s"
        print(f"container: {cell}: {times}, ratio {ratio:.3f}, {more:+.2f} s")
    print(f"container: medians of {repeats} (promised for every cell: {PROMISED_RATIO}, or {PROMISED_SECONDS} s more)")
    return kept


def _out() -> Path:
    folder = REPOSITORY / "out"
    folder.mkdir(exist_ok=True)
    return folder
