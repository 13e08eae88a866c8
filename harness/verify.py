"""Holding a report against a baseline, in three grades: the same bits, the same verdicts, or different.

The same bits are the same digests where both reports have them, else the same figures in every comparison. The same
verdicts are the same kinds of `harness.verdict`. Beside each difference stands what changed in its cell's environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness import verdict
from harness.errors import BadInput
from harness.plan import Plan
from harness.report import VERSUS, Report, StackDetails, VerdictKind

Grade = Literal["bits", "verdicts", "different"]
GRADES: tuple[Grade, ...] = ("bits", "verdicts", "different")
_WORDS = {"bits": "same bits", "verdicts": "same verdicts", "different": "different"}
_MOST = 12


@dataclass(frozen=True, kw_only=True)
class CellGrade:
    """One cell of the baseline: its grade, where it differs, and what changed in its environment."""

    cell: str
    grade: Grade
    where: list[str]
    changes: list[str]

    @property
    def words(self) -> str:
        """The grade as it is said."""
        return _WORDS[self.grade]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """A report held against a baseline."""

    cells: list[CellGrade]
    by_digest: bool
    """Whether bits were told by digests; else by the figures of the comparisons, which is all that both have."""
    everywhere: list[str]
    """What changed for all cells."""

    @property
    def grade(self) -> Grade:
        """The worst of its cells."""
        return max((cell.grade for cell in self.cells), key=GRADES.index)

    def reaches(self, wanted: Grade) -> bool:
        """Whether every cell has at least this grade."""
        return GRADES.index(self.grade) <= GRADES.index(wanted)

    def lines(self) -> Iterator[str]:
        """In words: each cell, where it differs and what changed beside it, and the whole."""
        for cell in self.cells:
            yield f"{cell.cell}: {cell.words}{_listed(cell.where, ': ')}"
            if cell.grade != "bits":
                yield f"  changed in its environment: {_listed(cell.changes) or 'nothing that is on record'}"
        if self.everywhere:
            yield f"changed for every cell: {_listed(self.everywhere)}"
        how = "by digests" if self.by_digest else "by the figures of every comparison: not both have digests"
        yield f"{_WORDS[self.grade]} ({how}), {len(self.cells)} cells"


def check(path: Path, baseline: Report, plan: Plan) -> None:
    """Raise BadInput when a baseline is of another matrix than the plan: nothing could be held against it."""
    device = baseline.bitmatrix.device if baseline.bitmatrix else "cuda" if baseline.environment.gpu else "cpu"
    planned = {cell.name for cell in plan.cells}
    cases = [case for case in baseline.cases if case not in plan.cases]
    if baseline.op != plan.op:
        raise BadInput(f"{path}: is of the op {baseline.op}, the matrix of {plan.op}; name a baseline of this matrix")
    if device != plan.device:
        raise BadInput(
            f"{path}: was made on {device}, this is {plan.device}; choose --device {device}, or another baseline"
        )
    if not planned & baseline.results.keys():
        known = ", ".join(baseline.results)
        raise BadInput(f"{path}: has no cell of this plan ({known}); name a baseline of this matrix")
    if cases:
        raise BadInput(f"{path}: has cases that this plan lacks ({', '.join(map(str, cases))}); widen --case")


def verify(baseline: Report, found: Report) -> Verification:
    """Grade every cell of the baseline by what the report has of it."""
    names = {**dict.fromkeys(baseline.results), **dict.fromkeys(_digests(baseline))}
    wanted, judged = _kinds(baseline, found), _kinds(found, baseline)
    return Verification(
        cells=[_cell(baseline, found, name, wanted.get(name, []), judged.get(name, [])) for name in names],
        by_digest=bool(_digests(baseline) and _digests(found)),
        everywhere=[*_shared_changes(baseline, found)],
    )


def _kinds(report: Report, other: Report) -> dict[str, list[VerdictKind]]:
    """The kinds of each cell's verdict, without those that only one of the two reports could have found."""
    return {
        cell: [kind for kind in found.kinds if _tells(report, cell, kind) and _tells(other, cell, kind)]
        for cell, found in verdict.every(report).items()
    }


def _tells(report: Report, cell: str, kind: VerdictKind) -> bool:
    """Whether a report could say this of a cell: the published format knows neither measures nor inert modes."""
    if kind == "inert":
        return report.bitmatrix is not None
    if kind not in verdict.BY_MEASURE:
        return True
    measures = (report.bitmatrix.measures or {}).get(cell) if report.bitmatrix else None
    return getattr(measures, verdict.BY_MEASURE[kind], None) is not None


def _cell(
    baseline: Report, found: Report, cell: str, wanted: list[VerdictKind], judged: list[VerdictKind]
) -> CellGrade:
    changes = [*_stack_changes(baseline, found, cell)]
    details = found.bitmatrix.cells.get(cell) if found.bitmatrix else None
    if details and details.status != "done":
        where = [f"has no result here: {details.status.replace('_', ' ')}: {details.reason}"]
        return CellGrade(cell=cell, grade="different", where=where, changes=changes)
    if cell not in found.results:
        return CellGrade(cell=cell, grade="different", where=["isn't part of the report"], changes=changes)
    if wanted != judged:
        where = [f"{_words(wanted)} -> {_words(judged)}"]
        return CellGrade(cell=cell, grade="different", where=where, changes=changes)
    bits = [*_parted(_bits(baseline, found, cell), _bits(found, baseline, cell))]
    grade: Grade = "verdicts" if bits else "bits"
    return CellGrade(cell=cell, grade=grade, where=[_place(place) for place in bits], changes=changes)


def _words(kinds: list[VerdictKind]) -> str:
    return " and ".join(kind.replace("_", " ") for kind in kinds) or "no verdict"


def _parted(wanted: Mapping[tuple[str, ...], Any], found: Mapping[tuple[str, ...], Any]) -> Iterator[tuple[str, ...]]:
    """The places of the baseline where the other has something else; what it has beside them doesn't count."""
    for place, value in wanted.items():
        if found.get(place) != value:
            yield place


def _bits(report: Report, other: Report, cell: str) -> Mapping[tuple[str, ...], Any]:
    """What tells a cell's bits: digests by (case, tensor) where both reports have them, else all its figures."""
    mine, theirs = _digests(report).get(cell), _digests(other).get(cell)
    if mine is None or theirs is None:
        return _figures(report, cell)
    return {(case, name): digest for case, tensors in mine.items() for name, digest in tensors.items()}


def _digests(report: Report) -> dict[str, dict[str, dict[str, str]]]:
    return report.bitmatrix.digests if report.bitmatrix else {}


def _figures(report: Report, cell: str) -> dict[tuple[str, ...], tuple[Any, ...]]:
    found: dict[tuple[str, ...], tuple[Any, ...]] = {}
    result = report.results.get(cell)
    for reference, cases in (result.versus if result else {}).items():
        for case, compared in cases.items():
            named = {f"out {index}": one for index, one in enumerate(compared.out)}
            named |= {f"d {name}": one for name, one in compared.grads.items()}
            for name, one in named.items():
                place = (f"{VERSUS}{reference}", case, name)
                found[place] = (one.equal, one.differ, one.numel, one.max_abs)
    return found


def _place(place: tuple[str, ...]) -> str:
    *versus, case, name = place
    return " ".join([*versus, f"T={case}", name.replace("grads.", "d ")])


def _listed(values: list[str], before: str = "") -> str:
    more = f" and {len(values) - _MOST} more" if len(values) > _MOST else ""
    return before + ", ".join(values[:_MOST]) + more if values else ""


# What changed --------------------------------------------------------------------------------------------------------


def _stack_changes(baseline: Report, found: Report, cell: str) -> Iterator[str]:
    """What of the cell's stack and mode is on record as other than the baseline's."""
    before, after = _stack(baseline, cell), _stack(found, cell)
    if before is None or after is None:
        # The published format describes one stack, and each library's version where it was.
        old, new = baseline.environment, found.environment
        for name in ("torch", "python", "cuda", "tf32"):
            yield from _change(name, getattr(old, name), getattr(new, name))
        yield from _changes("", old.libraries, new.libraries)
    else:
        for name in ("status", "base", "image_id", "lock_sha256", "python", "torch", "cuda", "gpu", "driver", "cpu"):
            yield from _change(name, getattr(before, name), getattr(after, name))
        yield from _changes("", before.distributions, after.distributions)
    mode = cell.partition("[")[2].removesuffix("]")
    old_mode = baseline.environment.mode_environment.get(mode, {})
    yield from _changes("", old_mode, found.environment.mode_environment.get(mode, {}))


def _stack(report: Report, cell: str) -> StackDetails | None:
    details = report.bitmatrix
    known = details.cells.get(cell) if details else None
    return details.stacks.get(known.stack) if details and known else None


def _shared_changes(baseline: Report, found: Report) -> Iterator[str]:
    before, after = baseline.bitmatrix, found.bitmatrix
    yield from _change("gpu", baseline.environment.gpu, found.environment.gpu)
    if before is None or after is None:
        yield from _change("kernel commit", baseline.rl_kernel_commit, found.rl_kernel_commit)
        return
    for name in ("device_model", "isolation", "narrowed", "commit"):
        yield from _change(name.replace("_", " "), getattr(before, name), getattr(after, name))
    yield from _changes("input ", before.inputs, after.inputs)
    yield from _changes("kernel library ", before.library or {}, after.library or {})


def _changes(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        yield from _change(f"{prefix}{name}", before.get(name), after.get(name))


def _change(name: str, before: Any, after: Any) -> Iterable[str]:
    return [] if before == after else [f"{name} {_shown(before)} -> {_shown(after)}"]


def _shown(value: Any) -> str:
    text = "none" if value is None or value == [] else str(value)
    return text if len(text) <= 48 else f"{text.removeprefix('sha256:')[:12]}…"
