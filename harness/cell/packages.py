"""Which installed package something missing belongs to: the words of an `unavailable` cell."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager

from harness.cell.op import Unavailable


@contextmanager
def packages_needed() -> Iterator[None]:
    """Turn an ImportError of a package into Unavailable, named with its installed version.

    One of the harness' own modules missing stays an ImportError: that is a fault, not a fact about the stack.
    """
    try:
        yield
    except ImportError as error:
        top = _top_level(error.name)
        if top == "harness" or top.startswith("bitmatrix_"):
            raise
        raise Unavailable(_absence(error)) from error


def installed(module: str) -> str:
    """The distributions that hold a module's top-level package, with versions; the bare name when there is none."""
    top = _top_level(module)
    found = dict.fromkeys(importlib.metadata.packages_distributions().get(top, ()))
    return " or ".join(f"{name} {importlib.metadata.version(name)}" for name in found) or top


def _absence(error: ImportError) -> str:
    if error.name is None:
        return f"a package is missing: {error}"
    top = _top_level(error.name)
    if not isinstance(error, ModuleNotFoundError):
        return f"{installed(top)} can't be imported: {error}"
    if error.name == top:
        return f"package {top} is not installed"
    return f"{installed(top)} has no module {error.name}"


def _top_level(module: str | None) -> str:
    return (module or "").partition(".")[0]
