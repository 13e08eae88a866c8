"""Leases: one cell a GPU at a time, among all processes and users of a host.

A lease is an advisory lock (flock(2)) on a file that is named by the GPU's UUID. The kernel drops it when the last
process that holds it ends, however that ends; the file stays and means nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BitmatrixError
from harness.gpu import Gpu
from harness.workspace import default_cache

PLACE = Path("/run/lock")
"""Shared by all users of a host (FHS); emptied at boot, and on a tmpfs."""

_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A GPU that is ours. A process that inherits `descriptor` holds the lease too."""

    gpu: Gpu
    descriptor: int


def place() -> tuple[Path, str | None]:
    """Where the locks are; and, where that can't be the place all users share, a warning that says so."""
    if os.access(PLACE, os.W_OK | os.X_OK):
        return PLACE, None
    own = default_cache() / "leases"
    return own, (
        f"{PLACE} can't be written: GPU leases are kept in {own}, where other users' runs don't see them "
        f"(`sudo install -d -m 1777 {PLACE}`)"
    )


@contextmanager
def take(gpus: Sequence[Gpu], folder: Path, say: Callable[[str], None]) -> Iterator[Lease]:
    """A lease of whichever GPU is free first; `say` hears once that this waits, and for whom.

    Raises BitmatrixError when a lock can't be opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {gpu: _open(folder / f"bitmatrix-{gpu.uuid.replace('/', '_')}.lock") for gpu in gpus}
    try:
        lease = _first_free(files, say)
        for gpu, descriptor in files.items():
            if gpu != lease.gpu:
                os.close(descriptor)
        files = {lease.gpu: lease.descriptor}
        try:
            yield lease
        finally:
            # Not by closing alone: a process that inherited the descriptor and lingers would keep the lock.
            fcntl.flock(lease.descriptor, fcntl.LOCK_UN)
    finally:
        for descriptor in files.values():
            os.close(descriptor)


def _first_free(files: dict[Gpu, int], say: Callable[[str], None]) -> Lease:
    waiting = False
    while True:
        for gpu, descriptor in files.items():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _sign(descriptor)
            return Lease(gpu=gpu, descriptor=descriptor)
        if not waiting:
            waiting = True
            say("waiting for " + " or ".join(f"{gpu.label}{_holder(held)}" for gpu, held in files.items()))
        time.sleep(_POLL_SECONDS)


def _open(path: Path) -> int:
    """The lock's file, which any user may open. Never through a link: anybody may write beside it."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        while True:
            # In a sticky folder Linux refuses O_CREAT on another user's file (fs.protected_regular).
            with suppress(FileNotFoundError):
                return os.open(path, flags)
            with suppress(FileExistsError):
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # whatever the umask
                return descriptor
    except OSError as error:
        raise BitmatrixError(
            f"{path}: the lock of a GPU can't be opened ({error.strerror}); remove the file while nothing runs"
        ) from error


def _sign(descriptor: int) -> None:
    """Say in the file who holds it, for those who wait."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 32, 0).strip()
    return f", held by process {int(text)}" if text.isdigit() else ""
