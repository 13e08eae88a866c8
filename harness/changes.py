"""What changed between two reports (another GPU, another month), and what most likely changed it.

A pure function of the two. Causes are ranked by what is known to change bits, and by how well the cells that a cause
can touch are those that did change: a ranking of what to look at first, not a proof.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness import render, verdict
from harness.grid import Grid, label
from harness.measure import NAMES
from harness.report import Details, Report, Verdict, VerdictKind

_PRIORS: tuple[tuple[str, float], ...] = (
    ("inputs", 1.0),
    ("operator", 1.0),
    ("device", 0.9),
    ("TF32", 0.85),
    ("environment of mode", 0.8),
    ("order of calls", 0.75),
    ("kernel", 0.75),
    ("nvidia-cublas", 0.75),
    ("torch", 0.7),
    ("triton", 0.65),
    ("CUDA", 0.6),
    ("numpy", 0.5),
    ("driver", 0.3),
    ("Python", 0.1),
    ("isolation", 0.1),
)
_FRAMEWORK = 0.6
"""Of any other library: a framework, whose modes change between its releases."""

_NUMERIC = re.compile(
    r"(torch|triton|numpy|scipy|mkl|vllm|sglang|diffusers)$|scipy-openblas|sgl-|sglang-|flashinfer|liger|megatron|"
    r"transformer-engine|rl-|quack|cuda-tile|nvidia-(cublas|cudnn|cuda-runtime|cuda-nvrtc|nvrtc|cutlass)"
)
"""Packages whose own code computes, matched at the start of the name: not torchvision, not cuda-bindings."""
_EVERYWHERE = ("torch", "triton", "numpy", "scipy", "diffusers")
"""Libraries that a cell of any mode may compute with; another is its framework's alone."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing of the environment that isn't the same, and the shared cells that it can touch."""

    what: str
    before: str
    after: str
    touches: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A change, ranked: `score` from 0 to 1, and in words how it fits the cells that changed."""

    change: Change
    score: float
    fit: str


@dataclass(frozen=True, kw_only=True)
class Turned:
    """A cell whose verdict is of other kinds now."""

    cell: str
    before: Verdict
    after: Verdict


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A cell that both reports name and only one has a result of; `why` the other has none."""

    cell: str
    gained: bool
    why: str


@dataclass(kw_only=True)
class Compared:
    """A cell against one reference in both reports: tensors by what became of them, as `out (T = 4)`."""

    cell: str
    reference: str
    now_equal: list[str] = field(default_factory=list)
    now_unlike: list[str] = field(default_factory=list)
    other_figures: list[str] = field(default_factory=list)
    same: int = 0

    @property
    def changed(self) -> bool:
        """Whether anything is another than before."""
        return bool(self.now_equal or self.now_unlike or self.other_figures)


@dataclass(frozen=True, kw_only=True)
class Bits:
    """A cell's own bits in both reports, by digest: tensors and cases with the same, of all that both have."""

    cell: str
    same: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Two cells whose equality changed: where they return the same bits now and didn't, and the other way round."""

    cells: tuple[str, str]
    gained: list[str]
    lost: list[str]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Everything that differs between two reports, the most likely cause first."""

    shared: list[str]
    """Cells with a result in both."""
    only_before: list[str]
    only_after: list[str]
    ended: list[Ended]
    verdicts: list[Turned]
    compared: list[Compared]
    bits: list[Bits]
    agreements: list[Agreement]
    measured_once: dict[bool, list[str]]
    """Measures that only one report took of a shared cell: False for the first, True for the second."""
    causes: list[Cause]
    more: int
    """Installed packages that changed and aren't of numeric interest."""

    @property
    def changed_cells(self) -> set[str]:
        """The shared cells of which anything changed."""
        cells = {one.cell for one in self.verdicts} | {one.cell for one in self.compared if one.changed}
        return cells | {one.cell for one in self.bits if one.same < one.total}

    @property
    def untold(self) -> list[str]:
        """The shared cells of which neither comparisons nor digests tell whether their bits changed."""
        told = {one.cell for one in self.compared} | {one.cell for one in self.bits} | self.changed_cells
        return [cell for cell in self.shared if cell not in told]

    @property
    def first(self) -> Cause | None:
        """What to look at first; None where nothing changed, or nothing on record can have changed it."""
        return next((cause for cause in self.causes if cause.score > 0), None) if self.shared else None


def between(before: Report, after: Report) -> Changes:
    """What changed from one report to another; both may be published ones, or of any device."""
    old, new = Grid(before), Grid(after)
    shared = [cell for cell in old.cells if cell in before.results and cell in after.results]
    ours, theirs = verdict.every(before), verdict.every(after)
    found = Changes(
        shared=shared,
        only_before=[cell for cell in before.results if cell not in new.cells],
        only_after=[cell for cell in after.results if cell not in old.cells],
        ended=[
            *(Ended(cell=cell, gained=False, why=theirs[cell].sentence) for cell in _without(before, after, new)),
            *(Ended(cell=cell, gained=True, why=ours[cell].sentence) for cell in _without(after, before, old)),
        ],
        verdicts=[
            Turned(cell=cell, before=ours[cell], after=theirs[cell])
            for cell in shared
            if _kinds(ours[cell], cell, old, new) != _kinds(theirs[cell], cell, old, new)
        ],
        compared=[one for cell in shared for one in _compared(old, new, cell)],
        bits=list(_bits(before, after, shared)),
        agreements=list(_agreements(old, new, shared)),
        measured_once={
            second: list(
                dict.fromkeys(name for cell in shared for name in sorted(_taken(one, cell) - _taken(other, cell)))
            )
            for second, one, other in ((False, old, new), (True, new, old))
        },
        causes=[],
        more=_uninteresting(before, after),
    )
    told = [cell for cell in shared if cell not in found.untold]
    found.causes.extend(_ranked(list(_environment(before, after, told)), found.changed_cells))
    return found


def _without(report: Report, other: Report, grid: Grid) -> list[str]:
    """The cells with a result in `report` that the other one names and has none of."""
    return [cell for cell in report.results if cell in grid.cells and cell not in other.results]


def _taken(grid: Grid, cell: str) -> set[str]:
    """The measures that have a result."""
    measures = grid.measures.get(cell)
    return {name for name in NAMES if (taken := getattr(measures, name, None)) and taken.result}


def _kinds(one: Verdict, cell: str, before: Grid, after: Grid) -> list[VerdictKind]:
    """A verdict's kinds, but those of a measure that only one of the reports took: that is no change."""
    once = _taken(before, cell) ^ _taken(after, cell)
    return [kind for kind in one.kinds if verdict.BY_MEASURE.get(kind) not in once]


def markdown(before: Report, after: Report, names: tuple[str, str]) -> str:
    """The changes as Markdown; `names` are what the reader calls the two."""
    # As in `render`: Markdown escapes otherwise than HTML, and every foreign text goes through a filter.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("harness"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"text": render.text, "code": render.code, "names": render.names}
    rendered = environment.get_template("changes.md.j2").render(
        found=between(before, after), before=before, after=after, names=names
    )
    return re.sub(r"\n{3,}", "\n\n", rendered).rstrip("\n") + "\n"


# Results -------------------------------------------------------------------------------------------------------------


def _compared(before: Grid, after: Grid, cell: str) -> Iterator[Compared]:
    for reference in before.references:
        old = {(pair.case, pair.label): pair.comparison for pair in before.pairs(cell, reference)}
        new = {(pair.case, pair.label): pair.comparison for pair in after.pairs(cell, reference)}
        if not old.keys() & new.keys():
            continue
        found = Compared(cell=cell, reference=reference)
        for place in old:
            if place not in new:
                continue
            one, other, where = old[place], new[place], f"{place[1]} (T = {place[0]})"
            if one.equal != other.equal:
                (found.now_equal if other.equal else found.now_unlike).append(where)
            elif (one.differ, one.max_abs) != (other.differ, other.max_abs):
                found.other_figures.append(where)
            else:
                found.same += 1
        yield found


def _bits(before: Report, after: Report, shared: list[str]) -> Iterator[Bits]:
    if not before.bitmatrix or not after.bitmatrix:
        return
    for cell in shared:
        old, new = (details.digests.get(cell, {}) for details in (before.bitmatrix, after.bitmatrix))
        both = [
            (digest, new[case][tensor])
            for case, tensors in old.items()
            for tensor, digest in tensors.items()
            if tensor in new.get(case, {})
        ]
        if both:
            yield Bits(cell=cell, same=sum(one == other for one, other in both), total=len(both))


def _agreements(before: Grid, after: Grid, shared: list[str]) -> Iterator[Agreement]:
    """Pairs of cells that agree in other places than before; only places of which both reports can tell."""
    old, new = _equalities(before), _equalities(after)
    both = [(f"{name} (T = {case})", old[case, name], new[case, name]) for case, name in old if (case, name) in new]
    for first, second in combinations(shared, 2):
        known = [(place, one.equal(first, second), other.equal(first, second)) for place, one, other in both]
        gained = [place for place, was, now in known if was is False and now is True]
        lost = [place for place, was, now in known if was is True and now is False]
        if gained or lost:
            yield Agreement(cells=(first, second), gained=gained, lost=lost)


@dataclass(frozen=True, kw_only=True)
class _Equality:
    """What a report tells of equal cells in one place: each cell's group; without digests, who was compared."""

    group: dict[str, int]
    compared: set[tuple[str, str]] | None

    def equal(self, first: str, second: str) -> bool | None:
        """Whether two cells return the same bits; None where the report can't tell."""
        ours, theirs = self.group.get(first), self.group.get(second)
        if ours is not None and ours == theirs:
            return True
        if self.compared is None:
            return None if ours is None or theirs is None else False
        return False if {(first, second), (second, first)} & self.compared else None


def _equalities(grid: Grid) -> dict[tuple[str, str], _Equality]:
    """By case and label."""
    compared: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for reference in grid.references:
        for cell in grid.report.results:
            for pair in grid.pairs(cell, reference):
                compared.setdefault((pair.case, pair.label), set()).add((cell, reference))
    return {
        (case, label(tensor)): _Equality(
            group={cell: number for number, group in enumerate(groups) for cell in group},
            compared=None if grid.report.bitmatrix else compared.get((case, label(tensor)), set()),
        )
        for case, tensors in grid.classes.by_case.items()
        for tensor, groups in tensors.items()
    }


# Environments and causes ---------------------------------------------------------------------------------------------


def _environment(before: Report, after: Report, shared: list[str]) -> Iterator[Change]:
    every = frozenset(shared)
    for what, old, new in _common(before, after):
        if old != new:
            yield Change(what=what, before=_said(old), after=_said(new), touches=every)
    kernel = frozenset(cell for cell in shared if "[" not in cell)
    if before.rl_kernel_commit != after.rl_kernel_commit:
        yield Change(
            what="kernel's source",
            before=_said(before.rl_kernel_commit),
            after=_said(after.rl_kernel_commit),
            touches=kernel,
        )
    libraries = [(one.bitmatrix.library or {}).get("sha256") if one.bitmatrix else None for one in (before, after)]
    if before.bitmatrix and after.bitmatrix and libraries[0] != libraries[1]:
        yield Change(what="kernel library", before=_said(libraries[0]), after=_said(libraries[1]), touches=kernel)
    modes = (before.environment.mode_environment, after.environment.mode_environment)
    for mode in dict.fromkeys([*modes[0], *modes[1]]):
        old_mode, new_mode = (one.get(mode) for one in modes)
        touched = frozenset(cell for cell in shared if cell.endswith(f"[{mode}]"))
        if old_mode is not None and new_mode is not None and old_mode != new_mode:
            yield Change(
                what=f"environment of mode {mode}",
                before=_variables(old_mode),
                after=_variables(new_mode),
                touches=touched,
            )
    yield from _libraries(before, after, shared)


def _common(before: Report, after: Report) -> Iterator[tuple[str, object, object]]:
    """What all cells share: name, before, after."""
    yield "operator", before.op, after.op
    old, new = before.environment, after.environment
    yield "device", _device(before), _device(after)
    yield "TF32", old.tf32, new.tf32
    yield "torch", _release(old.torch), _release(new.torch)
    yield "CUDA", old.cuda, new.cuda
    yield "Python", old.python, new.python
    if before.bitmatrix and after.bitmatrix:
        one, other = before.bitmatrix, after.bitmatrix
        yield "inputs", _inputs(one, other), _inputs(other, one)
        yield "isolation", one.isolation, other.isolation
        yield "order of calls (narrowed run)", " ".join(one.narrowed), " ".join(other.narrowed)
        yield "driver", _driver(one), _driver(other)


def _driver(details: Details) -> str | None:
    return next((stack.driver for stack in details.stacks.values() if stack.driver), None)


def _device(report: Report) -> str | None:
    model = report.environment.gpu or (report.bitmatrix.device_model if report.bitmatrix else None)
    capability = ".".join(map(str, report.environment.capability or []))
    return f"{model}, compute capability {capability}" if model and capability else model


def _inputs(ours: Details, theirs: Details) -> str:
    """The digests of inputs and cases that both have, as one text."""
    parts = []
    for name, digest in ours.inputs.items():
        other = theirs.inputs.get(name)
        if isinstance(digest, dict) and isinstance(other, dict):
            parts += [f"{name} {case} {value[:12]}" for case, value in sorted(digest.items()) if case in other]
        elif other is not None:
            parts.append(f"{name} {str(digest)[:12]}")
    return "; ".join(parts)


def _libraries(before: Report, after: Report, shared: list[str]) -> Iterator[Change]:
    """Versions by library: of the published list, then of each stack that both reports know."""
    told = {"torch"}
    old, new = before.environment.libraries, after.environment.libraries
    for library in dict.fromkeys([*old, *new]):
        # A version without a build's name says the same as one with it.
        versions = [_release(one.get(library)) for one in (old, new)]
        if library not in told and versions[0] != versions[1] and not (library not in old or library not in new):
            touched = [cell for cell in shared if _touches(library, cell)]
            yield Change(what=library, before=_said(versions[0]), after=_said(versions[1]), touches=frozenset(touched))
        told.add(library)
    for name, package, one, other in _packages(before, after):
        if package not in {library.lower().replace("_", "-") for library in told} and _NUMERIC.match(package):
            cells = frozenset(cell for cell in shared if _stack_of(before, cell) == name)
            yield Change(what=f"{package} in stack {name}", before=_said(one), after=_said(other), touches=cells)


def _packages(before: Report, after: Report) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Stack, package and its versions, where they differ in a stack that both reports know."""
    if not before.bitmatrix or not after.bitmatrix:
        return
    for name, stack in before.bitmatrix.stacks.items():
        other = after.bitmatrix.stacks.get(name)
        if other is None or not stack.distributions or not other.distributions:
            continue
        for package in sorted({*stack.distributions, *other.distributions}):
            versions = (stack.distributions.get(package), other.distributions.get(package))
            if versions[0] != versions[1]:
                yield name, package, *versions


def _uninteresting(before: Report, after: Report) -> int:
    return sum(not _NUMERIC.match(package) for _, package, _, _ in _packages(before, after))


def _stack_of(report: Report, cell: str) -> str | None:
    details = report.bitmatrix.cells.get(cell) if report.bitmatrix else None
    return details.stack if details else None


_OF_FRAMEWORK = {"flashinfer": "vllm", "liger": "sglang", "transformer": "megatron"}
"""Libraries that a framework of another name brings."""


def _touches(library: str, cell: str) -> bool:
    """Whether a cell may compute with a library, by the names: a framework's serve its own modes."""
    word = re.split(r"[-_]", library.lower())[0]
    if library in _EVERYWHERE:
        return library != "diffusers" or cell.startswith("diffusers")
    names = re.split(r"[\[\]_]", cell.lower())
    return word in names or _OF_FRAMEWORK.get(word) in names or (word == "transformer" and names[0] == "te")


def _ranked(changes: list[Change], changed: set[str]) -> list[Cause]:
    causes = [_cause(change, changed) for change in changes]
    return sorted(causes, key=lambda cause: -cause.score)


def _cause(change: Change, changed: set[str]) -> Cause:
    explained = change.touches & changed
    recall = len(explained) / len(changed) if changed else 1.0
    precision = len(explained) / len(change.touches) if change.touches and changed else float(not changed)
    if not changed:
        fit = "no cell is known to have changed"
    elif not change.touches:
        fit = "touches no cell that both reports have"
    else:
        fit = (
            f"can touch {len(explained)} of the {len(changed)} cells that changed, and "
            f"{len(change.touches - changed)} that didn't"
        )
    # A cause of some of the changes still is one: half of the score is its own.
    return Cause(change=change, score=round(_prior(change.what) * precision * (0.5 + recall / 2), 3), fit=fit)


def _prior(what: str) -> float:
    return next((prior for words, prior in _PRIORS if what.startswith(words)), _FRAMEWORK)


def _release(version: str | None) -> str | None:
    """A version without the name of its build: `2.13.0` of `2.13.0+cu130`."""
    return version.partition("+")[0] if version else version


def _variables(environment: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in environment.items()) or "nothing"


def _said(value: object) -> str:
    return {None: "none", "": "none", True: "on", False: "off"}.get(value, str(value))  # type: ignore[call-overload,no-any-return]
