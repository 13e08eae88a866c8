"""Reports as Markdown, through Jinja. Whatever a name or a reason holds, a table keeps its columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.report import Case, Comparison, Report

_MOST = 300
"""Characters of a text that a table shows; the whole is in report.json."""

EQUAL = "="


def markdown(report: Report) -> str:
    """The report as Markdown: published or our own; ends with one newline."""
    # Markdown escapes otherwise than HTML; every foreign text goes through `text` or `code` below.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("harness"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"text": text, "code": code, "short": short, "names": names}
    rendered = environment.get_template("report.md.j2").render(
        report=report,
        details=report.bitmatrix,
        tensors=_tensors(report),
        sections=[_section(report, reference) for reference in _references(report)],
        same=_same(report),
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


def text(value: object) -> str:
    """Foreign text for a table's cell or a sentence: one line, and nothing in it is Markdown or HTML."""
    words = "".join(character if character.isprintable() else " " for character in str(value)).split()
    line = " ".join(words)
    line = line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|~#&$" else character for character in line)


def code(value: object) -> str:
    """Foreign text as code. A pipe would end a table's cell even there, and a backtick the code: both are replaced."""
    words = "".join(character if character.isprintable() else " " for character in str(value)).split()
    line = " ".join(words)[:_MOST].replace("|", "¦").replace("`", "'")
    return f"`{line}`" if line else ""


def names(values: Iterable[str]) -> str:
    """Cells, as code, in one sentence."""
    return ", ".join(code(value) for value in values)


def short(digest: str | None) -> str:
    """The first 12 digits of a digest."""
    return code(digest.removeprefix("sha256:")[:12]) if digest else ""


def mark(comparison: Comparison) -> str:
    """`=` for equal bits, else how many of how many elements differ, and the largest difference."""
    if comparison.equal:
        return EQUAL
    largest = "no finite pair" if comparison.max_abs is None else f"{comparison.max_abs:.1e}"
    return f"{comparison.differ:,} / {comparison.numel:,} · {largest}"


def _references(report: Report) -> list[str]:
    """As declared; of a published report, as found."""
    if report.bitmatrix:
        return report.bitmatrix.references
    return list(dict.fromkeys(reference for result in report.results.values() for reference in result.versus))


def _tensors(report: Report) -> list[str]:
    """The columns: outputs, then gradients."""
    if report.bitmatrix:
        return [*report.bitmatrix.outputs, *(f"d {name}" for name in report.bitmatrix.gradients)]
    for result in report.results.values():
        for cases in result.versus.values():
            for case in cases.values():
                outputs = ["out"] if len(case.out) == 1 else [f"out {index}" for index in range(len(case.out))]
                return [*outputs, *(f"d {name}" for name in case.grads)]
    return []


def _section(report: Report, reference: str) -> Section:
    rows, equal = [], []
    for cell, result in report.results.items():
        cases = result.versus.get(reference, {})
        rows += [Row(cell=cell, case=case, marks=_marks(cases[case])) for case in sorted(cases, key=_numeric)]
        if cases and all(_all_equal(case) for case in cases.values()):
            equal.append(cell)
    return Section(reference=reference, rows=rows, equal=equal, absent=_absent(report, reference, rows))


def _absent(report: Report, reference: str, rows: list[Row]) -> str | None:
    if rows:
        return None
    cell = report.bitmatrix.cells.get(reference) if report.bitmatrix else None
    if cell is None:
        return "not part of this run"
    if cell.status != "done":
        return f"{cell.status.replace('_', ' ')}: {cell.reason}"
    return "no other cell has a result"


def _numeric(case: str) -> tuple[int, str]:
    return (int(case), case) if case.isdecimal() and len(case) < 20 else (0, case)


def _comparisons(case: Case) -> list[Comparison]:
    return [*case.out, *case.grads.values()]


def _marks(case: Case) -> list[str]:
    return [mark(comparison) for comparison in _comparisons(case)]


def _all_equal(case: Case) -> bool:
    return all(comparison.equal for comparison in _comparisons(case))


def _same(report: Report) -> dict[str, list[list[str]]]:
    """For each tensor of which there are any, the groups of cells whose bits are equal in every case."""
    if report.bitmatrix is None:
        return {}
    histories: dict[str, dict[str, list[str]]] = {}
    for cell, cases in report.bitmatrix.digests.items():
        for case in sorted(cases):
            for tensor, digest in cases[case].items():
                histories.setdefault(tensor, {}).setdefault(cell, []).append(f"{case}:{digest}")
    found = {}
    for tensor, history in histories.items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for cell, digests in history.items():
            groups.setdefault(tuple(digests), []).append(cell)
        found[tensor.replace("grads.", "d ")] = [group for group in groups.values() if len(group) > 1]
    return {tensor: groups for tensor, groups in found.items() if groups}
