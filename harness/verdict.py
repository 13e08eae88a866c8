"""Verdicts: what each cell turned out to be, in words to act on, from what its report says and measures.

`every(report)` judges any report, also a published one without measures: where nothing was measured, a verdict says
that it goes by the differences alone. A pure function; nothing else is looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from harness.grid import Grid, Pair, label
from harness.measure import Measures
from harness.report import Report, Verdict, VerdictKind

FULL_BITS = 24
"""Significant bits of FP32."""

BY_MEASURE: dict[VerdictKind, str] = {"not_batch_invariant": "batch_invariance", "not_repeatable": "repeatability"}
"""Kinds of a verdict that only a measure can give, and the measure."""

_FAMILIES = {11: "TF32-like", 8: "BF16-like"}

_FAR_ULP = 512
"""A median distance from which on it isn't the order of a sum: that moves a result by some units, at most by tens."""

_FAR_RATIO = 64.0
"""How many times the smallest difference that any cell shows of a tensor is more than another order of sums gives."""

MEANINGS: dict[VerdictKind, str] = {
    "reference": "the others are held against it",
    "not_repeatable": "the same call gave other bits: nothing else said of it can be relied on",
    "inert": "its mode changed nothing: what it equals says nothing of that mode",
    "reduced_precision": "keeps fewer bits than FP32 has: less accurate, whatever its flags say",
    "not_batch_invariant": "a row's bits depend on what shares its call: other batches, other bits",
    "identical": "the reference's bits: one can stand for the other",
    "other_order": "as precise as the reference, its sums in another order: near it, not bit for bit",
    "differs": "not the reference's bits, and nothing here tells how precise it is",
    "not_comparable": "no result here, or nothing to hold it against",
}
"""What each kind means to who has to decide; the order is a verdict's, what matters most first."""

_ORDER = tuple(MEANINGS)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The answer in short: which cells return the bits of the first reference with a result, and which don't.

    An inert cell is in neither: that it equals another says nothing. `groups` are all cells by kind of their verdict.
    """

    reference: str | None
    equal: list[str]
    unlike: list[str]
    lost: list[str]
    groups: dict[VerdictKind, list[str]]


@dataclass
class _Findings:
    """What was found of a cell: a part of its sentence by kind, and the evidence in the order of finding."""

    parts: dict[VerdictKind, str] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)

    def add(self, kind: VerdictKind, words: str, *evidence: str) -> None:
        self.parts[kind] = words
        self.evidence += evidence


def every(report: Report) -> dict[str, Verdict]:
    """The verdict of every cell of a report, those without a result too."""
    grid = Grid(report)
    return {cell: _one(grid, cell) for cell in grid.cells}


def summary(grid: Grid, verdicts: Mapping[str, Verdict]) -> Summary:
    """What a report's verdicts come to."""
    reference = _first(grid)
    held = [
        cell for cell, one in verdicts.items() if reference and one.reference == reference and "inert" not in one.kinds
    ]
    groups = {kind: [cell for cell, one in verdicts.items() if kind in one.kinds] for kind in _ORDER}
    return Summary(
        reference=reference,
        equal=[cell for cell in held if "identical" in verdicts[cell].kinds],
        unlike=[cell for cell in held if not {"identical", "not_comparable"} & {*verdicts[cell].kinds}],
        lost=[cell for cell in verdicts if cell not in grid.report.results],
        groups={kind: cells for kind, cells in groups.items() if cells},
    )


def _first(grid: Grid) -> str | None:
    """The first reference that has a result."""
    return next((name for name in grid.references if name in grid.report.results), None)


def _one(grid: Grid, cell: str) -> Verdict:
    report = grid.report
    declared = report.bitmatrix.cells.get(cell) if report.bitmatrix else None
    if cell not in report.results:
        reason = f"{declared.status.replace('_', ' ')}: {declared.reason or 'no reason is known'}" if declared else ""
        return Verdict(kinds=["not_comparable"], reference=None, sentence=f"No result: {reason}", evidence=[])
    main = _first(grid)
    versus = report.results[cell].versus
    reference = None if cell == main else next((name for name in grid.references if name in versus), None)
    found = _Findings()
    measures = grid.measures.get(cell)
    if cell == main:
        found.add("reference", "the reference that the others are held against")
    elif reference is None:
        found.add("not_comparable", "no reference has a result to hold it against")
    if measures:
        _repeatable(found, measures)
        _precise(found, measures)
        _invariant(found, measures)
    if declared and declared.inert:
        found.add("inert", "inert: its mode's activation replaced no operator and set nothing")
    elif declared and declared.note:
        found.evidence.append(f"{declared.note[:1].upper()}{declared.note[1:]}.")
    if reference is not None:
        _compared(found, grid, cell, reference)
    _accurate(found, grid, cell, main)
    kinds = sorted(found.parts, key=_ORDER.index)
    sentence = "; ".join(found.parts[kind] for kind in kinds)
    return Verdict(
        kinds=kinds, reference=reference, sentence=sentence[:1].upper() + sentence[1:], evidence=found.evidence
    )


def _repeatable(found: _Findings, measures: Measures) -> None:
    taken, second = measures.repeatability, measures.second_process
    result = taken.result if taken else None
    again = sorted({label(name) for tensors in result.differ.values() for name in tensors}) if result else []
    apart = sorted({label(name) for names in second.differ.values() for name in names}) if second else []
    if again or apart:
        where = " and ".join([*(["when called again"] if again else []), *(["in a second process"] if apart else [])])
        names = ", ".join(dict.fromkeys([*again, *apart]))
        found.add("not_repeatable", f"not repeatable: other bits {where}", f"Other bits {where}: {names}.")
    elif result and result.calls:
        also = ", and in a second process" if second and second.status == "done" else ""
        found.evidence.append(f"Repeatable: the same bits when called again ({result.calls} of each case){also}.")


def _precise(found: _Findings, measures: Measures) -> None:
    taken = measures.precision
    least = taken.result.least if taken and taken.result else None
    if taken is None or taken.result is None or least is None:
        return
    paths = sorted({path for of in taken.result.bits.values() for path, bits in of.items() if bits == least})
    if not least:
        found.evidence.append(
            f"The probe can't tell: not even 2 comes back exactly ({', '.join(paths)}); no short mantissa does that."
        )
    elif least < FULL_BITS:
        family = f" ({_FAMILIES[least]})" if least in _FAMILIES else ""
        found.add(
            "reduced_precision",
            f"reduced precision{family}: it keeps {least} of {FULL_BITS} significant bits",
            f"The probe's exact numbers come back with {least} bits: {', '.join(paths)}.",
        )
    else:
        found.evidence.append(f"Full precision: every probed path keeps {least} significant bits.")


def _invariant(found: _Findings, measures: Measures) -> None:
    taken = measures.batch_invariance
    if taken is None or taken.result is None:
        return
    result = taken.result
    how = "quick check" if result.quick else "strict check"
    partly = "" if result.complete else ", stopped by time"
    if result.differ:
        share = f"{result.differ:,} of {result.compared:,} rows compared"
        first = result.first[0] if result.first else None
        where = f"; first: {label(first.tensor)}, row {first.row} of {first.batch}" if first else ""
        found.add(
            "not_batch_invariant",
            "not batch-invariant",
            f"Not batch-invariant: {share} change with what shares their call ({how}{partly}){where}.",
        )
    elif result.compared and result.complete:
        found.evidence.append(f"Batch-invariant: none of {result.compared:,} rows compared changes ({how}).")
    elif result.compared:
        found.evidence.append(f"No row of {result.compared:,} changed with its batch before time was over ({how}).")


def _compared(found: _Findings, grid: Grid, cell: str, reference: str) -> None:
    pairs = list(grid.pairs(cell, reference))
    unlike = [pair for pair in pairs if not pair.comparison.equal]
    if not pairs:
        found.add("not_comparable", f"nothing of it was compared with {reference}")
        return
    if not unlike:
        whole = {str(case) for case in grid.report.cases} <= {pair.case for pair in pairs}
        where = "in every tensor and case" if whole else "in the cases that were compared"
        found.add("identical", f"bit-identical to {reference} {where}")
        return
    median, distances = _distance(unlike)
    share = f"differs from {reference} in {len(unlike)} of {len(pairs)} tensors{distances}"
    ratio = _ratio(unlike, grid.smallest)
    if "reduced_precision" in found.parts:
        found.evidence.append(f"It {share}.")
        return
    measured = any(line.startswith("Full precision") for line in found.evidence)
    untold = "" if any(line.startswith("The probe can't") for line in found.evidence) else " No probe was run."
    far = ratio is not None and ratio >= _FAR_RATIO if median is None else median >= _FAR_ULP
    if measured:
        found.add("other_order", f"same precision, other order: {share}")
    elif far:
        why = (
            f"the median distance is {median:,} ULP"
            if median is not None
            else f"its differences are {ratio:,.0f} times the smallest that any cell shows of the same tensors"
        )
        found.add(
            "reduced_precision",
            f"likely reduced precision (TF32-like): {share}",
            f"By its differences alone: {why}; another order of sums moves results by far less.{untold}",
        )
    elif median is not None or ratio is not None:
        found.add(
            "other_order",
            f"likely the same precision, other order: {share}",
            f"By its differences alone: they are as small as another order of sums makes them.{untold}",
        )
    else:
        found.add("differs", f"{share}; nothing here tells whether its precision is the same")


def _distance(unlike: list[Pair]) -> tuple[int | None, str]:
    """The median of the tensors' median distances, and words for it; None without details."""
    largest = max((pair.comparison.max_abs or 0.0 for pair in unlike), default=0.0)
    medians = [pair.detail.ulp_median for pair in unlike if pair.detail and pair.detail.ulp_median is not None]
    if not medians:
        return None, f", by at most {largest:.1e}"
    # Not the largest distance: an element near zero that changes its sign is billions of units away.
    middle = int(statistics.median_low(medians))
    return middle, f", by {middle:,} ULP in the median and {largest:.1e} at most"


def _ratio(unlike: list[Pair], scale: dict[tuple[str, str, str], float]) -> float | None:
    """How many times larger than the smallest its differences are, in the median of tensors; None without another."""
    ratios = [
        pair.comparison.max_abs / scale[place]
        for pair in unlike
        if pair.comparison.max_abs and (place := (pair.reference, pair.case, pair.label)) in scale
    ]
    return statistics.median(ratios) if ratios else None


def _accurate(found: _Findings, grid: Grid, cell: str, main: str | None) -> None:
    """How its error against FP64 stands to the reference's: evidence, and a verdict only where nothing else spoke."""
    ours, theirs = dict(_errors(grid, cell)), dict(_errors(grid, main)) if main else {}
    shared = [place for place in ours if theirs.get(place)]
    if not ours:
        return
    typical = statistics.median(ours.values())
    line = f"RMS error against FP64: {typical:.1e} of the result's own scale (median of tensors)"
    if cell != main and shared:
        ratio = statistics.median(ours[place] / theirs[place] for place in shared)
        line += f", {ratio:.2g} times that of {main}"
    found.evidence.append(f"{line}.")


def _errors(grid: Grid, cell: str | None) -> Iterator[tuple[tuple[str, str], float]]:
    """Relative RMS errors by case and tensor."""
    measures = grid.measures.get(cell or "")
    taken = measures.accuracy if measures else None
    for case, tensors in (taken.result.cases if taken and taken.result else {}).items():
        for tensor, error in tensors.items():
            if error.scale:
                yield (case, tensor), error.rms_abs / error.scale
