"""Reports as Markdown, through Jinja. Whatever a name or a reason holds, a table keeps its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.report import Case, Classes, Comparison, Report

_MOST = 300
"""Characters of a text that a table shows; the whole is in report.json."""

_MOST_FINDINGS = 12
"""Packages that aren't as pinned; in host isolation they can be hundreds."""

EQUAL = "="
INERT = "inert"
ABSENT = "absent"


def markdown(report: Report) -> str:
    """The report as Markdown: published or our own; ends with one newline."""
    # Markdown escapes otherwise than HTML; every foreign text goes through `text` or `code` below.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("harness"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"text": text, "code": code, "short": short, "names": names, "assignments": assignments}
    columns = _columns(report)
    sections = [_section(report, reference, columns) for reference in _references(report)]
    classes = report.bitmatrix.classes if report.bitmatrix else _known(sections, columns)
    rendered = environment.get_template("report.md.j2").render(
        report=report,
        details=report.bitmatrix,
        columns=columns.labels,
        sections=sections,
        most_findings=_MOST_FINDINGS,
        same=[group for group in _active(report, classes.whole) if len(group) > 1],
        agreements=_agreements(report, classes),
    )
    return rendered.rstrip("\n") + "\n"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The tensors of the table, the same in each of its rows: the outputs in order, then gradients by name."""

    outputs: list[str]
    gradients: list[str]

    @property
    def labels(self) -> list[str]:
        """What stands above them."""
        return [*self.outputs, *(f"d {name}" for name in self.gradients)]

    def of(self, case: Case) -> dict[str, Comparison]:
        """A case's comparisons by label; what it doesn't have is left out."""
        outputs = dict(zip(self.outputs, case.out, strict=False))
        return outputs | {f"d {name}": comparison for name, comparison in case.grads.items()}


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
    """A group of cells with the same bits, and in which tensors and cases."""

    cells: list[str]
    where: str


def text(value: object) -> str:
    """Foreign text for a table's cell or a sentence: one line, and nothing in it is Markdown or HTML."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|~#&$" else character for character in _line(value))


def code(value: object) -> str:
    """Foreign text as code. A pipe would end a table's cell even there, and a backtick the code: both are replaced."""
    line = _line(value).replace("|", "¦").replace("`", "'")
    return f"`{line}`" if line else ""


def names(values: Iterable[str]) -> str:
    """Cells, as code, in one sentence."""
    return ", ".join(code(value) for value in values)


def assignments(variables: Mapping[str, str]) -> str:
    """Environment variables, each as code."""
    return " ".join(code(f"{variable}={value}") for variable, value in variables.items())


def short(digest: object) -> str:
    """The first 12 digits of a digest."""
    return code(str(digest).removeprefix("sha256:")[:12]) if digest else ""


def mark(comparison: Comparison | None) -> str:
    """`=` for equal bits, else how many of how many elements differ, and the largest difference."""
    if comparison is None:
        return ABSENT
    if comparison.equal:
        return EQUAL
    largest = "no finite pair" if comparison.max_abs is None else f"{comparison.max_abs:.1e}"
    return f"{comparison.differ:,} / {comparison.numel:,} · {largest}"


def _line(value: object) -> str:
    """One line of printable characters, cut where it is too long to read."""
    words = "".join(character if character.isprintable() else " " for character in str(value)).split()
    line = " ".join(words)
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"


def _references(report: Report) -> list[str]:
    """As declared, then as found; of a published report, as found."""
    declared = report.bitmatrix.references if report.bitmatrix else []
    found = (reference for result in report.results.values() for reference in result.versus)
    return list(dict.fromkeys([*declared, *found]))


def _columns(report: Report) -> Columns:
    """Every tensor that is declared or that any row has."""
    details = report.bitmatrix
    cases = [
        case for result in report.results.values() for section in result.versus.values() for case in section.values()
    ]
    most = max((len(case.out) for case in cases), default=0)
    outputs = details.outputs if details else []
    if len(outputs) < most:
        outputs = ["out"] if most == 1 else [f"out {index}" for index in range(most)]
    declared = details.gradients if details else []
    found = (name for case in cases for name in case.grads)
    return Columns(outputs=outputs, gradients=list(dict.fromkeys([*declared, *found])))


def _section(report: Report, reference: str, columns: Columns) -> Section:
    rows, equal = [], []
    whole = {str(case) for case in report.cases}
    inert = _inert(report)
    for cell, result in report.results.items():
        cases = result.versus.get(reference, {})
        alike = INERT if cell in inert else EQUAL
        found = [_row(cell, case, columns, cases[case], alike) for case in sorted(cases, key=_numeric)]
        rows += found
        if whole <= cases.keys() and all(mark == EQUAL for row in found for mark in row.marks):
            equal.append(cell)
    return Section(reference=reference, rows=rows, equal=equal, absent=_absent(report, reference, rows))


def _row(cell: str, case: str, columns: Columns, compared: Case, alike: str) -> Row:
    by_label = columns.of(compared)
    marks = [mark(by_label.get(label)) for label in columns.labels]
    return Row(cell=cell, case=case, marks=[alike if mark == EQUAL else mark for mark in marks])


def _inert(report: Report) -> set[str]:
    """The cells whose mode did nothing: that they equal another says nothing of the mode."""
    cells = report.bitmatrix.cells if report.bitmatrix else {}
    return {name for name, cell in cells.items() if cell.inert}


def _active(report: Report, groups: list[list[str]]) -> list[list[str]]:
    """The groups without inert cells."""
    inert = _inert(report)
    return [[cell for cell in group if cell not in inert] for group in groups]


def _absent(report: Report, reference: str, rows: list[Row]) -> str | None:
    if rows:
        return None
    cell = report.bitmatrix.cells.get(reference) if report.bitmatrix else None
    if cell is None:
        return "not part of this run"
    if cell.status != "done":
        return f"{cell.status.replace('_', ' ')}: {cell.reason or 'no reason is known'}"
    return "no other cell has a result"


def _numeric(case: str) -> tuple[int, str]:
    return (int(case), case) if case.isdecimal() and len(case) < 20 else (0, case)


# Which cells agree ---------------------------------------------------------------------------------------------------


def _known(sections: list[Section], columns: Columns) -> Classes:
    """What the comparisons alone say of equal cells, where a report has no digests.

    Cells that equal the same reference equal each other. Those that equal none may still do so: nobody compared them.
    """
    equal: dict[str, dict[str, list[list[str]]]] = {}
    for section in sections:
        for case in dict.fromkeys(row.case for row in section.rows):
            rows = [row for row in section.rows if row.case == case]
            for index, label in enumerate(columns.labels):
                alike = [row.cell for row in rows if row.marks[index] == EQUAL]
                equal.setdefault(case, {}).setdefault(label, []).append([section.reference, *alike])
    return Classes(
        whole=_joined([[section.reference, *section.equal] for section in sections]),
        by_case={
            case: {tensor: _joined(groups) for tensor, groups in tensors.items()} for case, tensors in equal.items()
        },
    )


def _joined(groups: list[list[str]]) -> list[list[str]]:
    """The groups, those that share a member made one."""
    joined: list[list[str]] = []
    for group in groups:
        apart = [other for other in joined if not set(other) & set(group)]
        members = [name for other in joined if other not in apart for name in other]
        joined = [*apart, list(dict.fromkeys([*members, *group]))]
    return joined


def _agreements(report: Report, classes: Classes) -> list[Agreement]:
    """Each group of equal cells with where it is equal, the largest first."""
    places: dict[tuple[str, ...], dict[str, list[str]]] = {}
    everywhere: dict[str, list[str]] = {}
    for case in sorted(classes.by_case, key=_numeric):
        for tensor, groups in classes.by_case[case].items():
            everywhere.setdefault(tensor, []).append(case)
            for group in _active(report, groups):
                if len(group) > 1:
                    places.setdefault(tuple(group), {}).setdefault(tensor, []).append(case)
    return [
        Agreement(cells=list(group), where=_where(places[group], everywhere))
        for group in sorted(places, key=len, reverse=True)
    ]


def _where(cases_of: dict[str, list[str]], everywhere: dict[str, list[str]]) -> str:
    """`out (T = 1, 4), d w2`: a tensor without cases is equal in all of them."""
    if cases_of == everywhere:
        return "every tensor in every case"
    parts = []
    for tensor in (tensor for tensor in everywhere if tensor in cases_of):
        label = text(f"d {tensor.removeprefix('grads.')}" if tensor.startswith("grads.") else tensor)
        cases = cases_of[tensor]
        parts.append(label if cases == everywhere[tensor] else f"{label} (T = {', '.join(map(text, cases))})")
    return ", ".join(parts)
