"""A report as a grid: which references, cases and tensors it has, what stands in each place, and which cells agree.

Every way to show or judge a report (`render`, `page`, `figure`, `verdict`, `changes`) looks at it through this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from harness.report import Case, Classes, Comparison, PairDetail, Report


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
class Pair:
    """One tensor of one cell and case against a reference's; `detail` where the report has it."""

    cell: str
    reference: str
    case: str
    label: str
    comparison: Comparison
    detail: PairDetail | None


def label(tensor: str) -> str:
    """`d x` for `grads.x`; an output as it is."""
    return f"d {tensor.removeprefix('grads.')}" if tensor.startswith("grads.") else tensor


def references(report: Report) -> list[str]:
    """As declared, then as found; of a published report, as found."""
    declared = report.bitmatrix.references if report.bitmatrix else []
    found = (reference for result in report.results.values() for reference in result.versus)
    return list(dict.fromkeys([*declared, *found]))


def columns(report: Report) -> Columns:
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


def numeric(case: str) -> tuple[int, str]:
    """Cases are texts in a report; in this order they read as numbers."""
    return (int(case), case) if case.isdecimal() and len(case) < 20 else (0, case)


def cases(report: Report) -> list[str]:
    """The report's cases, smallest first, and any other that a section has."""
    found = {case for result in report.results.values() for section in result.versus.values() for case in section}
    return sorted({*map(str, report.cases), *found}, key=numeric)


def cells(report: Report) -> list[str]:
    """Every cell: the requested ones in their order, or those with a result."""
    declared = report.bitmatrix.cells if report.bitmatrix else {}
    return list(dict.fromkeys([*declared, *report.results]))


def inert(report: Report) -> set[str]:
    """The cells whose mode did nothing: that they equal another says nothing of the mode."""
    declared = report.bitmatrix.cells if report.bitmatrix else {}
    return {name for name, cell in declared.items() if cell.inert}


def pairs(report: Report, cell: str, reference: str) -> Iterator[Pair]:
    """What the report has of a cell against a reference, by case, then tensor."""
    result = report.results.get(cell)
    sections = result.versus.get(reference, {}) if result else {}
    details = (report.bitmatrix.pairs or {}) if report.bitmatrix else {}
    known = details.get(cell, {}).get(reference, {})
    named = columns(report)
    for case in sorted(sections, key=numeric):
        by_label = {label(name): detail for name, detail in known.get(case, {}).items()}
        for name, comparison in named.of(sections[case]).items():
            yield Pair(
                cell=cell,
                reference=reference,
                case=case,
                label=name,
                comparison=comparison,
                detail=by_label.get(name),
            )


# Which cells agree ---------------------------------------------------------------------------------------------------


def classes(report: Report) -> Classes:
    """The report's own, by digest; else what its comparisons prove.

    Cells that equal the same reference equal each other. Those that equal none may still do so: nobody compared them.
    """
    if report.bitmatrix:
        return report.bitmatrix.classes
    equal: dict[str, dict[str, list[list[str]]]] = {}
    whole = []
    named = columns(report)
    every = {(str(case), name) for case in report.cases for name in named.labels}
    for reference in references(report):
        group = [reference]
        for cell in report.results:
            found = list(pairs(report, cell, reference))
            alike = {(pair.case, pair.label) for pair in found if pair.comparison.equal}
            for pair in found:
                members = equal.setdefault(pair.case, {}).setdefault(pair.label, [])
                if [reference] not in (one[:1] for one in members):
                    members.append([reference])
                if pair.comparison.equal:
                    next(one for one in members if one[0] == reference).append(cell)
            if every and every <= alike:
                group.append(cell)
        whole.append(group)
    return Classes(
        whole=_joined(whole),
        by_case={case: {name: _joined(groups) for name, groups in of.items()} for case, of in equal.items()},
    )


def twins(report: Report) -> list[list[str]]:
    """Cells without digests that differ from every reference in the same numbers, everywhere: likely the same bits.

    The figures are how many elements differ and by how much at most; that they agree in every tensor and case by chance
    is unlikely where there are many, and no proof.
    """
    if report.bitmatrix:
        return []
    groups: dict[str, list[str]] = {}
    for cell in report.results:
        found = [
            (pair.reference, pair.case, pair.label, pair.comparison.differ, pair.comparison.max_abs)
            for reference in references(report)
            for pair in pairs(report, cell, reference)
        ]
        if sum(one[3] > 0 for one in found) >= _FEWEST_FIGURES:
            groups.setdefault(json.dumps(found), []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


_FEWEST_FIGURES = 8


def _joined(groups: list[list[str]]) -> list[list[str]]:
    """The groups, those that share a member made one."""
    joined: list[list[str]] = []
    for group in groups:
        apart = [other for other in joined if not set(other) & set(group)]
        members = [name for other in joined if other not in apart for name in other]
        joined = [*apart, list(dict.fromkeys([*members, *group]))]
    return joined
