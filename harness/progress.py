"""Progress: which cell of how many, on what, for how long. A spinner on a terminal, one line a cell elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

_STYLES = {"done": "green", "unavailable": "yellow"}


def console() -> Console:
    """Standard error: standard output is for results."""
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


class Progress:
    """Says what runs and how it ended. `total` cells are expected."""

    def __init__(self, total: int) -> None:
        self._console = console()
        self._total = total
        self._number = 0

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(Text(text))

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Something long that is no cell: shown while it lasts, with its time at the end if that was over 2 s."""
        clock = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(Text(what)):
                yield
        else:
            yield
        seconds = time.monotonic() - clock
        if seconds > 2:
            self.say(f"{what}: {seconds:.0f} s")

    @contextmanager
    def cell(self, name: str, stack: str) -> Iterator[Callable[..., None]]:
        """One cell; the caller notes how it ended."""
        self._number += 1
        place = f"[{self._number}/{self._total}]"
        clock = time.monotonic()
        ended: list[tuple[str, str | None, bool]] = []

        def note(status: str, reason: str | None, *, reused: bool) -> None:
            ended.append((status, reason, reused))

        if self._console.is_terminal:
            with self._console.status(Text(f"{place} {name} in stack {stack}")):
                yield note
        else:
            yield note
        for status, reason, reused in ended:
            seconds = "kept" if reused else f"{time.monotonic() - clock:.1f} s"
            line = Text(f"{place} {name} in stack {stack}: ")
            line.append(status.replace("_", " "), style=_STYLES.get(status, "red"))
            line.append(f", {seconds}" + (f": {reason}" if reason else ""))
            self._console.print(line)
