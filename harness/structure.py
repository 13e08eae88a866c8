"""Whether a report has another's structure: the same keys in the same order for the same cells, of whatever values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.report import Report, dumps

Kind = Literal["missing", "extra", "order", "type"]

_NUMBERS = (int, float)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One place where two structures part. An `extra` key stands beside the others and takes nothing away."""

    kind: Kind
    place: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}{f': {self.detail}' if self.detail else ''}"


def differences(wanted: Report, found: Report) -> list[Difference]:
    """Where `found` hasn't the structure of `wanted`, in the order of `wanted`; extra keys last.

    Values count only where they are structure: the cases, the number of outputs, and the kind of a value; null stands
    for any kind. A cell without a result is named with its reason.
    """
    mine, theirs = (json.loads(dumps(report)) for report in (wanted, found))
    parts = list(_object(mine, theirs, ()))
    reasons = {
        f"results.{name}": f"{cell.status.replace('_', ' ')}: {cell.reason}"
        for name, cell in (found.bitmatrix.cells if found.bitmatrix else {}).items()
        if cell.status != "done"
    }
    explained = [
        Difference(kind=part.kind, place=part.place, detail=reasons[part.place])
        if part.kind == "missing" and part.place in reasons
        else part
        for part in parts
    ]
    return sorted(explained, key=lambda part: part.kind == "extra")


def _object(wanted: Mapping[str, Any], found: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Difference]:
    for key in wanted:
        if key in found:
            yield from _value(wanted[key], found[key], (*path, key))
        else:
            yield Difference(kind="missing", place=".".join((*path, key)))
    for key in found:
        if key not in wanted:
            yield Difference(kind="extra", place=".".join((*path, key)))
    ours, theirs = ([key for key in one if key in other] for one, other in ((wanted, found), (found, wanted)))
    if ours != theirs:
        detail = f"{', '.join(theirs)}, where {', '.join(ours)} is wanted"
        yield Difference(kind="order", place=".".join(path) or "document", detail=detail)


def _value(wanted: Any, found: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        yield from _object(wanted, found, path)
    elif path == ("cases",):
        if wanted != found:
            yield Difference(kind="missing", place="cases", detail=f"{found}, where {wanted} is wanted")
    elif isinstance(wanted, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip(wanted, found, strict=False)):
            yield from _value(one, other, (*path, str(index)))
        if len(wanted) != len(found):
            kind: Kind = "missing" if len(found) < len(wanted) else "extra"
            yield Difference(kind=kind, place=".".join(path), detail=f"{len(found)} of {len(wanted)} items")
    elif not _alike(wanted, found):
        yield Difference(kind="type", place=".".join(path), detail=f"{_name(found)}, where {_name(wanted)} is wanted")


def _alike(wanted: Any, found: Any) -> bool:
    if wanted is None or found is None or type(wanted) is type(found):
        return True
    return all(isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in (wanted, found))


def _name(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "true or false"}.get(type(value), "a number")
