"""report.html: a report as one file that needs no network and no server, for a reader who has a minute.

Jinja escapes everything; its `finalize` also turns whatever isn't printable into blanks. The page's own style and
script are named by their hashes in its content security policy, so nothing else can run in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness import render, verdict
from harness.grid import Grid, Pair, label, numeric
from harness.measure import Error
from harness.report import Report

LEVELS = ("equal", "up to 1", "up to 8", "up to 64", "up to 512", "more")
"""The heat map's colours: median distance in ULP; without distances, how many times the smallest difference shown."""

_BOUNDS = (1, 8, 64, 512)
_MOST = 2000
"""Characters of one text; the whole is in report.json."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One place of the heat map: its colour's number, what stands in it, what a screen reader says, and its data."""

    level: int | None
    shown: str
    said: str
    index: int | None


@dataclass(frozen=True, kw_only=True)
class Map:
    """The heat map against one reference: a row of spots a cell, cases side by side."""

    reference: str
    rows: list[tuple[str, list[Spot]]]
    absent: str | None


def html(report: Report) -> str:
    """The report as HTML: published or our own; whole and self-contained."""
    environment = Environment(
        loader=PackageLoader("harness"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters["kind"] = render.kind
    style, script = (
        Markup(environment.loader.get_source(environment, name)[0])  # type: ignore[union-attr] # noqa: S704 - our own
        for name in ("page.css", "page.js")
    )
    grid = Grid(report)
    data: list[dict[str, Any]] = []
    maps = [_map(grid, reference, data) for reference in grid.references]
    verdicts = verdict.every(report)
    rendered = environment.get_template("report.html.j2").render(
        report=report,
        details=report.bitmatrix,
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        style=style,
        script=script,
        data=_embedded(data),
        cases=grid.cases,
        labels=grid.columns.labels,
        maps=maps,
        meanings=verdict.MEANINGS,
        levels=LEVELS,
        verdicts=verdicts,
        most_named=render.MOST_NAMED,
        summary=verdict.summary(grid, verdicts),
        findings=render.findings(report),
        same=[group for group in render.active(grid, grid.classes.whole) if len(group) > 1],
        agreements=render.agreements(grid),
        twins=grid.twins,
        measures=grid.measures,
        errors=list(_errors(grid)),
        measured=render.measured(grid),
        untimed=render.untimed(grid),
        mode_environment=report.environment.mode_environment,
    )
    return rendered.lstrip()


def _printable(value: object) -> object:
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    shown = "".join(character if character.isprintable() else " " for character in value)
    return shown if len(shown) <= _MOST else f"{shown[: _MOST - 1]}…"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _embedded(data: object) -> Markup:
    """JSON inside a script element: no character of it can end that element or start a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - made harmless above


# The heat map --------------------------------------------------------------------------------------------------------


def _map(grid: Grid, reference: str, data: list[dict[str, Any]]) -> Map:
    labels, cases = grid.columns.labels, grid.cases
    passive = grid.inert
    # Where one cell alone differs, the tensor's other cases tell what a small difference is.
    least: dict[str, float] = {}
    for (versus, _, name), value in grid.smallest.items():
        if versus == reference:
            least[name] = min(value, least.get(name, value))
    rows = []
    for cell in grid.cells:
        found = {(pair.case, pair.label): pair for pair in grid.pairs(cell, reference)}
        if found:
            spots = [
                _spot(
                    found.get((case, name)),
                    grid.smallest.get((reference, case, name), least.get(name)),
                    data,
                    inert=cell in passive,
                )
                for case in cases
                for name in labels
            ]
            rows.append((cell, spots))
    return Map(reference=reference, rows=rows, absent=render.absent(grid.report, reference, compared=bool(rows)))


def _spot(pair: Pair | None, smallest: float | None, data: list[dict[str, Any]], *, inert: bool) -> Spot:
    if pair is None:
        return Spot(level=None, shown="", said="absent", index=None)
    where = f"{pair.label}, T = {pair.case}"
    if pair.comparison.equal:
        shown = render.INERT if inert else render.EQUAL
        return Spot(level=0, shown=shown, said=f"{where}: equal in every bit", index=None)
    data.append(_data(pair))
    said = f"{where}: {render.mark(pair.comparison)}"
    if pair.detail and pair.detail.ulp_median is not None:
        return Spot(
            level=_level(pair.detail.ulp_median),
            shown=_short(pair.detail.ulp_median),
            said=f"{said} · median {pair.detail.ulp_median:,} ULP, at most {pair.detail.ulp_max:,}",
            index=len(data) - 1,
        )
    largest = pair.comparison.max_abs
    ratio = largest / smallest if largest and smallest else 1
    shown = "≠" if largest is None else f"{largest:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return Spot(level=_level(ratio), shown=shown, said=said, index=len(data) - 1)


def _data(pair: Pair) -> dict[str, Any]:
    """What a place's detail shows beside the names, which stand in the table."""
    comparison = pair.comparison
    found: dict[str, Any] = {"differ": comparison.differ, "numel": comparison.numel, "max_abs": comparison.max_abs}
    return found | ({"detail": pair.detail.model_dump()} if pair.detail else {})


def _level(value: float) -> int:
    return 1 + sum(value > bound for bound in _BOUNDS)


def _short(value: int) -> str:
    """A count in at most four characters."""
    if value < 10_000:
        return str(value)
    power = min(3, int(math.log10(value)) // 3)
    return f"{value // 1000**power}{' kMG'[power].strip()}" if value < 10**12 else f"1e{int(math.log10(value))}"


# Measures ------------------------------------------------------------------------------------------------------------


def _errors(grid: Grid) -> Iterator[tuple[str, str, dict[str, Error]]]:
    """Cell, case and errors by label."""
    for cell, measures in grid.measures.items():
        if measures.accuracy and measures.accuracy.result:
            for case in sorted(measures.accuracy.result.cases, key=numeric):
                tensors = measures.accuracy.result.cases[case]
                yield cell, case, {label(name): error for name, error in tensors.items()}
