"""The tie to the host's process: a cell ends when the one that started it does, however that ends."""

from __future__ import annotations

import os
import threading

from harness.cell.status import LIFELINE_CUT

_STDIN = 0


def start() -> None:
    """End this process, without clean-up, as soon as standard input is closed at its other end.

    The host holds a pipe open and never writes to it; the kernel closes it even when the host is killed.
    """
    threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    try:
        while os.read(_STDIN, 4096):
            pass
    finally:
        os._exit(LIFELINE_CUT)
