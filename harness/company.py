"""Whether another cell ran on this host's part of `out/` while one did: a latency taken in company is of both.

Each running cell holds a lock on a file of its own. Who starts leaves a mark in the file of every other that runs; so
each knows of those before it by looking, and of those after it by the mark, also when they ended first.
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kept(folder: Path) -> Iterator[Callable[[], bool]]:
    """Be one of the running cells of `folder`; gives a function that says whether there was another since the start."""
    folder.mkdir(parents=True, exist_ok=True)
    mine = folder / uuid.uuid4().hex
    with mine.with_name(f".{mine.name}.tmp").open("xb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        # Seen by others only once it is locked.
        Path(stream.name).rename(mine)
        others = [_meet(other) for other in folder.glob("[!.]*") if other != mine]
        met = any(others)
        try:
            yield lambda: met or mine.stat().st_size > 0
        finally:
            mine.unlink(missing_ok=True)


def _meet(path: Path) -> bool:
    """Leave a mark with a cell that runs; the file of one that ended without removing it is removed."""
    try:
        with path.open("r+b") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.write(b"met")
                return True
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    return False
