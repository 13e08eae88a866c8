"""Reading a fact that may not be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def attempt(read: Callable[[], Any]) -> Any:
    """What `read` returns, or in words why it can't be read: a fact must never end a cell."""
    try:
        return read()
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        return f"unreadable: {type(error).__name__}: {message}"
