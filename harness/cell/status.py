"""How a cell's process ends: its statuses, their exit codes, and the exception that means a fault."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """What a cell's process says of itself; `crashed` and `timeout` are for the host to say."""

    DONE = "done"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"

    @property
    def exit_code(self) -> int:
        """The process' exit code; 1 and 2 are left to Python itself and 128+n to signals."""
        return _EXIT_CODES[self]


_EXIT_CODES = {Status.DONE: 0, Status.UNAVAILABLE: 3, Status.FAILED: 4}

LIFELINE_CUT = 70
"""The exit code of a cell whose host process went away."""


class Failed(Exception):
    """A fault that a cell found itself; the message is the record's reason."""
