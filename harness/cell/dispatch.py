"""What a mode really changed in torch: kernels of aten operators, and Python functions put in their place.

torch's dispatcher names the file that registered each kernel, the one in force first. Some frameworks also assign
to torch's namespace (`torch.bmm = ...`), which goes past the dispatcher.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_KERNEL = re.compile(r"(?P<key>\w+(?:\[alias\])?)(?: \(inactive\))?: (?P<origin>.+?) :: ")

_NAMESPACES: dict[str, Callable[[Any], object]] = {
    "torch": lambda torch: torch,
    "torch.Tensor": lambda torch: torch.Tensor,
    "torch.nn.functional": lambda torch: torch.nn.functional,
}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """torch's dispatch table (the text of each aten operator) and the callables of its namespaces."""

    operators: Mapping[str, str]
    functions: Mapping[str, Any]


def snapshot() -> Snapshot | None:
    """The tables as they are now (50 ms for torch 2.13), or None while the process has no torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return Snapshot(
        operators={name: torch._C._dispatch_dump(name) for name in names},
        functions={
            f"{place}.{name}": value
            for place, namespace in _NAMESPACES.items()
            for name, value in list(vars(namespace(torch)).items())
            if callable(value)
        },
    )


def overrides(before: Snapshot, after: Snapshot) -> list[dict[str, str | None]]:
    """Each aten operator and dispatch key whose kernel changed: operator, key, and the origins before and after.

    An origin is the dispatcher's text, which names the registering file and line; None where there was no kernel.
    """
    found = []
    for operator in sorted(before.operators.keys() | after.operators.keys()):
        old, new = before.operators.get(operator, ""), after.operators.get(operator, "")
        if old != new:
            found += _changes(operator, _kernels(old), _kernels(new))
    return found


def patches(before: Snapshot, after: Snapshot) -> list[dict[str, str]]:
    """Each function of torch's namespaces that is another object now: its name, and where both come from."""
    return [
        {"function": name, "before": _origin(function), "after": _origin(after.functions.get(name))}
        for name, function in sorted(before.functions.items())
        if after.functions.get(name) is not function
    ]


def _changes(operator: str, old: dict[str, list[str]], new: dict[str, list[str]]) -> list[dict[str, str | None]]:
    return [
        {"operator": operator, "key": key, "before": _first(old.get(key)), "after": _first(new.get(key))}
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def _kernels(dump: str) -> dict[str, list[str]]:
    """Origins by dispatch key, the kernel in force first, then those it hides."""
    kernels: dict[str, list[str]] = {}
    for line in dump.splitlines():
        match = _KERNEL.match(line)
        if match:
            kernels.setdefault(match["key"], []).append(match["origin"])
    return kernels


def _first(origins: list[str] | None) -> str | None:
    return origins[0] if origins else None


def _origin(function: object) -> str:
    code = getattr(function, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    kind = type(function)
    return f"{kind.__module__}.{kind.__qualname__} {getattr(function, '__qualname__', '')}".rstrip()
