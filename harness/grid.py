"""A report as a grid: which references, cases and tensors it has, what stands in each place, and which cells agree.

Every way to show or judge a report (`render`, `page`, `figure`, `verdict`, `changes`) looks at it through this.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass

from harness.measure import Measures
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


def numeric(case: str) -> tuple[int, str]:
    """Cases are texts in a report; in this order they read as numbers."""
    return (int(case), case) if case.isdecimal() and len(case) < 20 else (0, case)


class Grid:
    """A report, looked at: everything is found once, so the report must not change meanwhile."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @functools.cached_property
    def references(self) -> list[str]:
        """As declared, then as found; of a published report, as found."""
        declared = self.report.bitmatrix.references if self.report.bitmatrix else []
        found = (reference for result in self.report.results.values() for reference in result.versus)
        return list(dict.fromkeys([*declared, *found]))

    @functools.cached_property
    def columns(self) -> Columns:
        """Every tensor that is declared or that any row has."""
        details = self.report.bitmatrix
        most = max((len(case.out) for _, case in self._sections()), default=0)
        outputs = details.outputs if details else []
        if len(outputs) < most:
            outputs = ["out"] if most == 1 else [f"out {index}" for index in range(most)]
        declared = details.gradients if details else []
        found = (name for _, case in self._sections() for name in case.grads)
        return Columns(outputs=outputs, gradients=list(dict.fromkeys([*declared, *found])))

    @functools.cached_property
    def cases(self) -> list[str]:
        """The report's cases, smallest first, and any other that a section has."""
        return sorted({*map(str, self.report.cases), *(name for name, _ in self._sections())}, key=numeric)

    @functools.cached_property
    def cells(self) -> list[str]:
        """Every cell: the requested ones in their order, or those with a result."""
        declared = self.report.bitmatrix.cells if self.report.bitmatrix else {}
        return list(dict.fromkeys([*declared, *self.report.results]))

    @functools.cached_property
    def inert(self) -> set[str]:
        """The cells whose mode did nothing: that they equal another says nothing of the mode."""
        declared = self.report.bitmatrix.cells if self.report.bitmatrix else {}
        return {name for name, cell in declared.items() if cell.inert}

    @functools.cached_property
    def measures(self) -> dict[str, Measures]:
        """What each cell measured; nothing in a report without measures."""
        return (self.report.bitmatrix.measures or {}) if self.report.bitmatrix else {}

    @functools.cached_property
    def smallest(self) -> dict[tuple[str, str, str], float]:
        """The smallest difference above zero that any cell has of a tensor, by reference, case and label.

        Only where two cells or more have one: of a single one it says nothing.
        """
        found: dict[tuple[str, str, str], list[float]] = {}
        for reference in self.references:
            for cell in self.report.results:
                for pair in self.pairs(cell, reference):
                    if pair.comparison.max_abs:
                        found.setdefault((reference, pair.case, pair.label), []).append(pair.comparison.max_abs)
        return {place: min(values) for place, values in found.items() if len(values) > 1}

    def pairs(self, cell: str, reference: str) -> Iterator[Pair]:
        """What the report has of a cell against a reference, by case, then tensor."""
        result = self.report.results.get(cell)
        sections = result.versus.get(reference, {}) if result else {}
        details = (self.report.bitmatrix.pairs or {}) if self.report.bitmatrix else {}
        known = details.get(cell, {}).get(reference, {})
        for case in sorted(sections, key=numeric):
            by_label = {label(name): detail for name, detail in known.get(case, {}).items()}
            for name, comparison in self.columns.of(sections[case]).items():
                yield Pair(
                    cell=cell,
                    reference=reference,
                    case=case,
                    label=name,
                    comparison=comparison,
                    detail=by_label.get(name),
                )

    @functools.cached_property
    def classes(self) -> Classes:
        """The report's own, by digest; else what its comparisons prove.

        Cells that equal the same reference equal each other. Those that equal none may still do so: nobody compared
        them.
        """
        if self.report.bitmatrix:
            return self.report.bitmatrix.classes
        by_case: dict[str, dict[str, list[list[str]]]] = {}
        whole = []
        every = {(str(case), name) for case in self.report.cases for name in self.columns.labels}
        for reference in self.references:
            equal, seen = self._equal(reference)
            for case, name in seen:
                groups = by_case.setdefault(case, {}).setdefault(name, [])
                groups.append([reference, *(cell for cell, places in equal.items() if (case, name) in places)])
            whole.append([reference, *(cell for cell, places in equal.items() if every and every <= places)])
        return Classes(
            whole=_joined(whole),
            by_case={case: {name: _joined(groups) for name, groups in of.items()} for case, of in by_case.items()},
        )

    @functools.cached_property
    def twins(self) -> list[list[str]]:
        """Cells without digests that differ from every reference in the same numbers, everywhere: likely the same bits.

        The figures are how many elements differ and by how much at most; that they agree in every tensor and case by
        chance is unlikely where there are many, and no proof.
        """
        if self.report.bitmatrix:
            return []
        groups: dict[str, list[str]] = {}
        for cell in self.report.results:
            found = [
                (pair.reference, pair.case, pair.label, pair.comparison.differ, pair.comparison.max_abs)
                for reference in self.references
                for pair in self.pairs(cell, reference)
            ]
            if sum(one[3] > 0 for one in found) >= _FEWEST_FIGURES:
                groups.setdefault(json.dumps(found), []).append(cell)
        return [group for group in groups.values() if len(group) > 1]

    def _sections(self) -> Iterator[tuple[str, Case]]:
        for result in self.report.results.values():
            for section in result.versus.values():
                yield from section.items()

    def _equal(self, reference: str) -> tuple[dict[str, set[tuple[str, str]]], dict[tuple[str, str], None]]:
        """Where each cell equals a reference, and all places that were compared with it, in order."""
        equal: dict[str, set[tuple[str, str]]] = {}
        seen: dict[tuple[str, str], None] = {}
        for cell in self.report.results:
            for pair in self.pairs(cell, reference):
                seen[pair.case, pair.label] = None
                if pair.comparison.equal:
                    equal.setdefault(cell, set()).add((pair.case, pair.label))
        return equal, seen


_FEWEST_FIGURES = 8


def _joined(groups: list[list[str]]) -> list[list[str]]:
    """The groups, those that share a member made one."""
    joined: list[list[str]] = []
    for group in groups:
        apart = [other for other in joined if not set(other) & set(group)]
        members = [name for other in joined if other not in apart for name in other]
        joined = [*apart, list(dict.fromkeys([*members, *group]))]
    return joined
