"""A cell in a container against the same cell as a plain process of its lock: at most 1.1 times, start included."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from harness import cli
from harness.capture import read
from harness.workspace import REPOSITORY

PROMISED_RATIO = 1.1
_CELL = "diffusers-plain"


def measure(*, repeats: int) -> bool:
    """Run `diffusers[plain]`'s full sweep in both isolations, in turn; whether the promise holds.

    The plain process is venv isolation's, which is started as host isolation's is but holds exactly the image's lock.
    """
    seconds: dict[str, list[float]] = {"docker": [], "venv": []}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_out()) as out:
        for repeat in range(repeats + 1):
            for isolation, found in seconds.items():
                options = ["--out", out, "--device", "cpu", "--isolation", isolation, "--mode", "plain", "--fresh"]
                if cli.main(["matrix", *options]) == cli.BAD_INPUT:
                    return False
                record = read(Path(out, "latest").resolve() / _CELL)
                if repeat:  # the first fills the page cache
                    found.append(record.seconds)
                print(f"container: {isolation} {record.seconds:.2f} s", flush=True)
    medians = {isolation: statistics.median(found) for isolation, found in seconds.items()}
    ratio = medians["docker"] / medians["venv"]
    print(
        f"container: docker {medians['docker']:.2f} s, plain process {medians['venv']:.2f} s (medians of {repeats}): "
        f"ratio {ratio:.3f} (promised {PROMISED_RATIO})"
    )
    return ratio <= PROMISED_RATIO


def _out() -> Path:
    folder = REPOSITORY / "out"
    folder.mkdir(exist_ok=True)
    return folder
