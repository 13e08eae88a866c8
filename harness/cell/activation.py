"""Switching a mode on, and seeing what that changed."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from harness.cell import dispatch, numerics
from harness.cell.claims import Claims
from harness.cell.job import Activation
from harness.cell.op import Unavailable
from harness.cell.packages import installed, packages_needed


def activate(activation: Activation, claims: Claims) -> None:
    """Find the mode's function and call it; `claims` gets what that replaced and set.

    Raises:
        Unavailable: this stack's versions lack the function, an argument of it, or a package that it imports.
    """
    before = dispatch.snapshot()
    with packages_needed():
        place, function = _find(activation)
        _check_arguments(place, function, activation.arguments)
        # Without torch until here, importing it is not the mode's doing.
        before = before or dispatch.snapshot()
        variables, flags = dict(os.environ), numerics.flags() or {}
        function(**activation.arguments)
    after = dispatch.snapshot()
    seen = before is not None and after is not None
    claims.activation = {
        "function": place,
        "seen": seen,
        "environment": _changes(variables, os.environ),
        "flags": _changes(flags, numerics.flags() or {}) if seen else {},
    }
    if before is not None and after is not None:
        claims.overrides = [*dispatch.overrides(before, after)]
        claims.patches = [*dispatch.patches(before, after)]


def _find(activation: Activation) -> tuple[str, Callable[..., Any]]:
    """The first of the mode's places that the installed version has."""
    places = {activation.function: activation.versions, **activation.elsewhere}
    for place in places:
        module_name, _, name = place.partition(":")
        function = getattr(_imported(module_name), name, None)
        if function is not None:
            return place, function
    known = (f"{place} (in versions {versions})" if versions else place for place, versions in places.items())
    raise Unavailable(f"{installed(activation.function)} has no {' nor '.join(known)}")


def _imported(name: str) -> ModuleType | None:
    """The module, or None when its package is there without it. Something else missing is an ImportError."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        inside = error.name is not None and "." in error.name and f"{name}.".startswith(f"{error.name}.")
        if not inside:
            raise
        return None


def _check_arguments(place: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise Unavailable(f"{place} of {installed(place)} can't be called so: {error}") from error
    except ValueError:  # a function without a signature: the call will tell
        return


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What differs, by name: the value before and after, None where there was none."""
    return {
        name: [before.get(name), after.get(name)]
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }
