"""Reports as Markdown, through Jinja. Whatever a name or a reason holds, a table keeps its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness import verdict
from harness.grid import Columns, Grid, label, numeric
from harness.measure import Accuracy, BatchInvariance, Measures, Precision, Repeatability, Taken
from harness.report import Case, Comparison, Finding, Report

_MOST = 300
"""Characters of a text that a table shows; the whole is in report.json."""

MOST_NAMED = 20
"""Cells that a summary names of one kind; the table below it has all."""

_MOST_FINDINGS = 20
"""In host isolation they can be hundreds."""

EQUAL = "="
INERT = "inert"
ABSENT = "absent"


def markdown(report: Report) -> str:
    """The report as Markdown: published or our own; ends with one newline."""
    # Markdown escapes otherwise than HTML; every foreign text goes through `text` or `code` below.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("harness"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "text": text,
        "code": code,
        "short": short,
        "names": names,
        "few": few,
        "assignments": assignments,
        "where": where,
        "kind": kind,
    }
    grid = Grid(report)
    verdicts = verdict.every(report)
    sections = [_section(grid, reference) for reference in grid.references]
    rendered = environment.get_template("report.md.j2").render(
        report=report,
        details=report.bitmatrix,
        columns=grid.columns.labels,
        sections=sections,
        findings=findings(report),
        most_findings=_MOST_FINDINGS,
        same=[group for group in active(grid, grid.classes.whole) if len(group) > 1],
        agreements=agreements(grid),
        twins=grid.twins,
        verdicts=verdicts,
        summary=verdict.summary(grid, verdicts),
        meanings=verdict.MEANINGS,
        measured=measured(grid),
        untimed=untimed(grid),
        cases=grid.cases,
    )
    return rendered.rstrip("\n") + "\n"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell and case against a reference: a mark or a difference a tensor."""

    cell: str
    case: str
    marks: list[str]


@dataclass(frozen=True, kw_only=True)
class Section:
    """One reference: its rows, which cells equal it in all of them, or why it has none."""

    reference: str
    rows: list[Row]
    equal: list[str]
    absent: str | None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A group of cells with the same bits, and where: each tensor with the cases, none for all of them.

    No places at all: every tensor in every case.
    """

    cells: list[str]
    places: dict[str, list[str]]


def text(value: object) -> str:
    """Foreign text for a table's cell or a sentence: one line, and nothing in it is Markdown or HTML."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|~#&$" else character for character in line(value))


def code(value: object) -> str:
    """Foreign text as code. A pipe would end a table's cell even there, and a backtick the code: both are replaced."""
    shown = line(value).replace("|", "¦").replace("`", "'")
    return f"`{shown}`" if shown else ""


def names(values: Iterable[str]) -> str:
    """Cells, as code, in one sentence."""
    return ", ".join(code(value) for value in values)


def few(values: list[str]) -> str:
    """The first cells, as code, and how many more there are."""
    more = len(values) - MOST_NAMED
    return names(values[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def assignments(variables: Mapping[str, str]) -> str:
    """Environment variables, each as code."""
    return " ".join(code(f"{variable}={value}") for variable, value in variables.items())


def short(digest: object) -> str:
    """The first 12 digits of a digest."""
    return code(str(digest).removeprefix("sha256:")[:12]) if digest else ""


def kind(name: str) -> str:
    """A verdict's kind as its reader meets it."""
    return {"identical": "bit-identical", "not_batch_invariant": "not batch-invariant"}.get(
        name, name.replace("_", " ")
    )


def microseconds(value: float) -> str:
    """A time in the unit that reads best."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} µs"


def mark(comparison: Comparison | None) -> str:
    """`=` for equal bits, else how many of how many elements differ, and the largest difference."""
    if comparison is None:
        return ABSENT
    if comparison.equal:
        return EQUAL
    largest = "no finite pair" if comparison.max_abs is None else f"{comparison.max_abs:.1e}"
    return f"{comparison.differ:,} / {comparison.numel:,} · {largest}"


def line(value: object) -> str:
    """One line of printable characters, cut where it is too long to read."""
    words = "".join(character if character.isprintable() else " " for character in str(value)).split()
    line = " ".join(words)
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"


# Measures ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """What one cell measured, in words for a table; empty where a measure wasn't asked for."""

    cell: str
    repeatable: str
    invariant: str
    bits: str
    error: str
    latency: dict[str, str]
    """Forward / forward and backward, by case."""


def measured(grid: Grid) -> list[MeasuredRow]:
    """A row for each cell that measured anything."""
    return [
        MeasuredRow(
            cell=cell,
            repeatable=_repeatable(taken),
            invariant=_words(taken.batch_invariance, _invariant),
            bits=_words(taken.precision, _bits),
            error=_words(taken.accuracy, _error),
            latency=_latency(taken),
        )
        for cell, taken in grid.measures.items()
    ]


def _words(taken: Taken[Any] | None, say: Callable[[Any], str]) -> str:
    if taken is None:
        return ""
    return say(taken.result) if taken.result is not None else f"{taken.status}: {taken.reason or 'no reason is known'}"


def _repeatable(taken: Measures) -> str:
    def called(result: Repeatability) -> str:
        return "other bits" if result.differ else "the same bits" if result.calls else "no time"

    second, words = taken.second_process, _words(taken.repeatability, called)
    if second is None:
        return words
    apart = "other bits" if second.differ else "the same bits"
    return f"{words} / {apart if second.status == 'done' else f'{second.status}: {second.reason}'}"


def _invariant(result: BatchInvariance) -> str:
    how = f"{'quick' if result.quick else 'strict'}{'' if result.complete else ', stopped by time'}"
    return f"{result.differ:,} of {result.compared:,} ({how})"


def _bits(result: Precision) -> str:
    # None at all: the path adds something of its own, whatever mantissa it keeps.
    return "no time" if result.least is None else f"{result.least} of 24" if result.least else "can't tell"


def _error(result: Accuracy) -> str:
    """The median over tensors and cases of the RMS error, as a share of the tensor's own RMS."""
    shares = [error.rms_abs / error.scale for of in result.cases.values() for error in of.values() if error.scale]
    return f"{median(shares):.1e}" if shares else "no time"


def _latency(taken: Measures) -> dict[str, str]:
    if taken.latency is None or taken.latency.result is None:
        return {}
    return {
        case: f"{microseconds(one.forward.median_us) if one.forward else 'none'} / {microseconds(one.whole.median_us)}"
        for case, one in taken.latency.result.cases.items()
    }


def untimed(grid: Grid) -> dict[str, str]:
    """Why a cell has no latency, by cell."""
    return {
        cell: _words(taken.latency, str)
        for cell, taken in grid.measures.items()
        if taken.latency and not taken.latency.result
    }


# Sections ------------------------------------------------------------------------------------------------------------


def _section(grid: Grid, reference: str) -> Section:
    rows, equal = [], []
    report = grid.report
    whole = {str(case) for case in report.cases}
    for cell, result in report.results.items():
        cases = result.versus.get(reference, {})
        alike = INERT if cell in grid.inert else EQUAL
        found = [_row(cell, case, grid.columns, cases[case], alike) for case in sorted(cases, key=numeric)]
        rows += found
        if whole <= cases.keys() and all(mark == EQUAL for row in found for mark in row.marks):
            equal.append(cell)
    return Section(reference=reference, rows=rows, equal=equal, absent=absent(report, reference, compared=bool(rows)))


def _row(cell: str, case: str, columns: Columns, compared: Case, alike: str) -> Row:
    by_label = columns.of(compared)
    marks = [mark(by_label.get(label)) for label in columns.labels]
    return Row(cell=cell, case=case, marks=[alike if mark == EQUAL else mark for mark in marks])


def active(grid: Grid, groups: list[list[str]]) -> list[list[str]]:
    """The groups without inert cells."""
    return [[cell for cell in group if cell not in grid.inert] for group in groups]


def absent(report: Report, reference: str, *, compared: bool) -> str | None:
    """Why nothing stands against a reference; None where something does."""
    if compared:
        return None
    cell = report.bitmatrix.cells.get(reference) if report.bitmatrix else None
    if cell is None:
        return "not part of this run"
    if cell.status != "done":
        return f"{cell.status.replace('_', ' ')}: {cell.reason or 'no reason is known'}"
    return "no other cell has a result"


def findings(report: Report) -> list[Finding]:
    """The findings, those of a report from before there were severities as warnings."""
    return [
        found if isinstance(found, Finding) else Finding(severity="warning", about="stack", message=found)
        for found in (report.bitmatrix.findings if report.bitmatrix else [])
    ]


# Which cells agree ---------------------------------------------------------------------------------------------------


def agreements(grid: Grid) -> list[Agreement]:
    """Each group of equal cells with where it is equal, the largest first."""
    places: dict[tuple[str, ...], dict[str, list[str]]] = {}
    everywhere: dict[str, list[str]] = {}
    for case in sorted(grid.classes.by_case, key=numeric):
        for tensor, groups in grid.classes.by_case[case].items():
            everywhere.setdefault(tensor, []).append(case)
            for group in active(grid, groups):
                if len(group) > 1:
                    places.setdefault(tuple(group), {}).setdefault(tensor, []).append(case)
    return [
        Agreement(cells=list(group), places=_places(places[group], everywhere))
        for group in sorted(places, key=len, reverse=True)
    ]


def _places(cases_of: dict[str, list[str]], everywhere: dict[str, list[str]]) -> dict[str, list[str]]:
    if cases_of == everywhere:
        return {}
    return {
        label(tensor): [] if cases_of[tensor] == everywhere[tensor] else cases_of[tensor]
        for tensor in everywhere
        if tensor in cases_of
    }


def where(agreement: Agreement) -> str:
    """`out (T = 1, 4), d w2`, as Markdown: a tensor without cases is equal in all of them."""
    parts = [
        f"{text(tensor)} (T = {', '.join(map(text, cases))})" if cases else text(tensor)
        for tensor, cases in agreement.places.items()
    ]
    return ", ".join(parts) or "every tensor in every case"
