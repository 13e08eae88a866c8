"""Bisecting a package of a stack: the first release that changes the bits, or a verdict, of the chosen cells.

Each release that is tried is a run: the stack with that one requirement replaced, its lock resolved again beside the
committed one, which stays as it is. Images, virtual environments and captures are those of any run and found by what
they depend on, so a second bisection makes none again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness import collect, index, lock, matrix, pipsite, report, resolve, rundir, verify
from harness import environment as environments
from harness.errors import BadInput, BitmatrixError
from harness.files import locked, sha256_json, temporary_folder, write_json, write_text
from harness.lock import Lock
from harness.matrix import DeviceName, Matrix
from harness.measure import Settings
from harness.plan import IsolationName
from harness.preparation import Preparation
from harness.report import Report
from harness.workspace import Workspace

By = Literal["bits", "verdicts"]
Same = Literal["same", "other", "skipped"]
Run = Callable[[Workspace, Matrix, Settings], Preparation]
"""Makes the stacks of a workspace and matrix, and runs their cells with measures."""

FILE = "bisect.json"
_AGAIN: Settings = {"repeatability": {"calls": 1, "second_process": True}}
_ALONE = frozenset(("reference", "not_comparable"))
"""Verdicts of a cell that is held against no other."""

_SHOWN = 12
_MOST_NAMES = 8


@dataclass(frozen=True, kw_only=True)
class Question:
    """`package==first..last`: between which two releases of which package."""

    package: str
    first: Version
    last: Version


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One release that was tried."""

    release: str
    status: Same
    """Against the first release of the range."""
    reason: str | None = None
    """Why it was skipped."""
    lock_sha256: str | None = None
    bits: str | None = None
    """SHA-256 over the digests of the chosen cells' tensors."""
    verdicts: dict[str, list[str]] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)
    """What else of the stack isn't as in the committed lock, because it doesn't go with this release."""
    reproduced: bool | None = None
    """Whether two processes more gave the same bits; None where nobody looked."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the search came to. `release` is the first that changes, null when nothing does."""

    release: str | None
    before: str
    """The last release that gives what the first one does."""
    suspects: list[str]
    """The releases that the change can be of: `release`, after those between it and `before` that were skipped."""
    reproduced: bool
    lines: list[str]
    """What differs between `before` and `release`, and what changed in the environment."""


def question(text: str) -> Question:
    """Read `package==A..B`. Raises BadInput when it isn't that, or A isn't older than B."""
    name, _, versions = text.partition("==")
    first, dots, last = versions.partition("..")
    example = "e.g. --package numpy==2.0.0..2.4.6"
    if not (name.strip() and dots):
        raise BadInput(f"--package {text}: must be a package and two of its releases, {example}")
    try:
        asked = Question(package=canonicalize_name(name.strip()), first=Version(first), last=Version(last))
    except InvalidVersion as error:
        raise BadInput(f"--package {text}: {error}; must be a package and two of its releases, {example}") from error
    if asked.first > asked.last:
        raise BadInput(f"--package {text}: {first} is newer than {last}; write {name}=={last}..{first}")
    if asked.first == asked.last:
        raise BadInput(f"--package {text}: one release alone has no first that changes anything; {example}")
    return asked


def releases(asked: Question, index_: str | None, say: Callable[[str], None]) -> list[Version]:
    """The releases of the range in order, from the site's indexes: no pre-release unless an end is one, none yanked.

    Raises BadInput when no index has the package or an end of the range, BitmatrixError when none can be asked.
    """
    found, unasked = index.releases(asked.package, pipsite.find(), index_)
    if unasked:
        say(f"not asked for releases: {', '.join(unasked)}")
    ends = (asked.first, asked.last)
    if not found:
        raise BadInput(f"no index that this site reaches has a package {asked.package}; check its name")
    early = any(end.is_prerelease for end in ends)
    between = sorted(
        version
        for version, yanked in found.items()
        if asked.first <= version <= asked.last
        and (
            version in ends or (not yanked and _of_kind(version, asked.first) and (early or not version.is_prerelease))
        )
    )
    lacking = [str(end) for end in ends if end not in between]
    if lacking:
        listed = ", ".join(map(str, between)) or f"none; it has {_ends(sorted(found))}"
        raise BadInput(
            f"{asked.package} has no release {' nor '.join(lacking)} in the indexes (releases in the range: {listed})"
        )
    return between


def _of_kind(version: Version, first: Version) -> bool:
    """Whether two releases have the same local label: 2.13.0+cpu is another build than 2.13.0, not a later release."""
    return version.local == first.local


def _ends(found: list[Version]) -> str:
    return f"{found[0]} to {found[-1]}"


def changed(requirements: list[str], package: str, release: Version) -> list[str]:
    """A stack's requirements with that release of the package; one that wasn't among them comes last."""
    lines, there = [], False
    for text in requirements:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) != package:
            lines.append(text)
            continue
        there = True
        wanted = SpecifierSet(f"=={release}")
        if requirement.specifier != wanted:  # as it is written, its lock stays the committed one
            requirement.specifier = wanted
            text = str(requirement)
        lines.append(text)
    return lines if there else [*lines, f"{package}=={release}"]


def boundary(count: int, tell: Callable[[int], Same]) -> tuple[int, int]:
    """Between which two of `count` releases it changes, the first being `same` and the last `other`.

    The first of the two is `same`, the second `other`, and all between them were told to be `skipped`. Where it changes
    more than once, any one of the changes from `same` to `other`.
    """
    low, high, skipped = 0, count - 1, set[int]()
    while untried := [number for number in range(low + 1, high) if number not in skipped]:
        # Round the skipped ones: the nearest to the middle that may tell something.
        number = min(untried, key=lambda number: abs(2 * number - low - high))
        match tell(number):
            case "same":
                low = number
            case "other":
                high = number
            case "skipped":
                skipped.add(number)
    return low, high


class Bisection:
    """One search: a stack at releases of one package."""

    def __init__(
        self,
        asked: Question,
        workspace: Workspace,
        declared: Matrix,
        device: DeviceName,
        stack: str,
        isolation: IsolationName,
        *,
        by: By,
        measures: Settings,
        run: Run,
        say: Callable[[str], None],
    ) -> None:
        """`measures` are taken of every release. Raises BadInput for a stack or package that can't be bisected."""
        self.asked, self.workspace, self.declared, self.device = asked, workspace, declared, device
        self.stack, self.isolation, self.by, self.measures, self.run, self.say = (
            stack,
            isolation,
            by,
            measures,
            run,
            say,
        )
        self.committed = self._lock()
        self.trials: dict[Version, Trial] = {}
        self._reports: dict[Version, Report] = {}
        self._folder = workspace.out  # of this search's runs, once it begins

    def _lock(self) -> Lock:
        stack = self.declared.device(self.device).stacks[self.stack]
        if stack.base is None:
            raise BadInput(f"stack {self.stack} is a published image: there is no package in it to choose")
        if self.isolation == "host":
            raise BadInput("the host's interpreter has one release of each package: choose --isolation docker or venv")
        path = environments.lock_of(self.workspace, self.declared, self.device, self.stack)
        committed = lock.read(path)
        named = [canonicalize_name(Requirement(text).name) for text in stack.requirements]
        if self.asked.package not in [*named, *committed.pins]:
            known = ", ".join(committed.pins)
            raise BadInput(
                f"stack {self.stack} has no package {self.asked.package}: neither its requirements nor its lock name "
                f"it (known: {known})"
            )
        return committed

    def search(self) -> tuple[Path, Outcome]:
        """Search, and keep the runs and bisect.json below out/bisect/; returns their folder and what was found.

        Raises BadInput when an end of the range can't be had.
        """
        stack = self.declared.device(self.device).stacks[self.stack]
        between = releases(self.asked, stack.index, self.say)
        self.say(f"{self.asked.package}: {len(between)} releases from {between[0]} to {between[-1]}")
        created = datetime.now(UTC)
        place = rundir.free(
            self.workspace.out / "bisect", f"{created:%Y%m%dT%H%M%SZ}-{self.stack}-{self.asked.package}"
        )
        with temporary_folder(place.parent, place.name) as folder:
            self._folder = folder
            outcome = self._search(between)
            write_json(folder / FILE, self._result(created, between, outcome))
            folder.rename(place)
        return place, outcome

    def _search(self, between: list[Version]) -> Outcome:
        first, last = between[0], between[-1]
        for end in (first, last):
            tried = self._try(end, first)
            if tried.status == "skipped":
                raise BadInput(
                    f"{self.asked.package} {end} can't be had, and nothing is held against it: {tried.reason}"
                )
            if self.by == "verdicts" and all(_ALONE.issuperset(kinds) for kinds in tried.verdicts.values()):
                raise BadInput("no chosen cell is held against another, so none has a verdict to change: use --by bits")
        if self.trials[last].status == "same":
            return self._outcome(last, None, [])
        low, high = boundary(len(between), lambda number: self._try(between[number], first).status)
        return self._outcome(between[low], between[high], [str(one) for one in between[low + 1 : high]])

    def _outcome(self, before: Version, release: Version | None, skipped: list[str]) -> Outcome:
        if release is None:
            return Outcome(release=None, before=str(before), suspects=[], reproduced=self._again(before), lines=[])
        reproduced = [self._again(version) for version in (before, release)]
        held = verify.verify(self._reports[before], self._reports[release])
        return Outcome(
            release=str(release),
            before=str(before),
            suspects=[*skipped, str(release)],
            reproduced=all(reproduced),
            lines=list(held.lines()),
        )

    # One release ------------------------------------------------------------------------------------------------------

    def _try(self, release: Version, first: Version) -> Trial:
        trial = self._tried(release)
        if trial.status != "skipped" and release != first:
            known = self.trials[first]
            same = trial.bits == known.bits if self.by == "bits" else trial.verdicts == known.verdicts
            trial = replace(trial, status="same" if same else "other")
        self.trials[release] = trial
        self.say(f"{self.asked.package} {release}: {self._words(trial, first)}")
        return trial

    def _words(self, trial: Trial, first: Version) -> str:
        if trial.status == "skipped":
            return f"skipped: {trial.reason}"
        beside = f"; beside it {_named(trial.beside)}" if trial.beside else ""
        if trial.release == str(first):
            return f"the others are held against its {self.by}{beside}"
        return f"{trial.status} {self.by} {'as' if trial.status == 'same' else 'than'} {first}{beside}"

    def _tried(self, release: Version) -> Trial:
        name = str(release)
        try:
            at, declared = self._resolved(release)
        except BitmatrixError as error:
            return Trial(release=name, status="skipped", reason=f"doesn't resolve: {error}")
        found = self._ran(release, at, declared, self.measures)
        if isinstance(found, str):
            return Trial(release=name, status="skipped", reason=found)
        made = lock.read(environments.lock_of(at, declared, self.device, self.stack))
        others = {package: pin for package, pin in self.committed.pins.items() if package != self.asked.package}
        beside = resolve.changes(others, [pin for pin in made.pins.values() if pin.name != self.asked.package])
        return Trial(
            release=name,
            status="same",
            lock_sha256=made.sha256,
            bits=_bits(found),
            verdicts=_verdicts(found),
            beside=beside,
        )

    def _resolved(self, release: Version) -> tuple[Workspace, Matrix]:
        """The stack at a release: a matrix and locks of its own, the other packages held where that resolves."""
        requirements = changed(
            self.declared.device(self.device).stacks[self.stack].requirements, self.asked.package, release
        )
        # The same question of the same lock has the same answer: what the indexes have since doesn't count.
        key = sha256_json([self.device, self.stack, self.isolation, self.committed.sha256, requirements])[:16]
        own = self.workspace.out / "bisect" / "resolved" / f"{self.stack}-{self.asked.package}-{release}-{key}"
        at = replace(self.workspace, own=own, matrix=own / "matrix.yaml")
        with locked(own.with_name(f"{own.name}.lock")):
            data = yaml.safe_load(self.workspace.matrix.read_text(encoding="utf-8"))
            data["devices"][self.device]["stacks"][self.stack]["requirements"] = requirements
            write_text(at.matrix, yaml.safe_dump(data, sort_keys=False))
            declared = matrix.load(at.matrix, at.kernels)
            path = environments.lock_of(at, declared, self.device, self.stack)
            for committed in (self.workspace.locks / self.device).glob("*.txt"):
                if committed.name not in (path.name, lock.build_path_of(path).name):
                    write_text(at.locks / self.device / committed.name, committed.read_text(encoding="utf-8"))
            if not path.is_file():
                self._resolve(at, declared, requirements)
        return at, declared

    def _resolve(self, at: Workspace, declared: Matrix, requirements: list[str]) -> None:
        path = environments.lock_of(at, declared, self.device, self.stack)
        build = lock.build_path_of(self.committed.path)
        if requirements == list(self.committed.requirements):
            # It is the committed stack.
            if build.is_file():
                write_text(lock.build_path_of(path), build.read_text(encoding="utf-8"))
            write_text(path, self.committed.path.read_text(encoding="utf-8"))
            return
        held = [pin for pin in self.committed.pins.values() if pin.name != self.asked.package]
        where = (at, declared, self.device, self.stack, self.isolation)
        try:
            made = list(resolve.stack(*where, held=held))
        except BitmatrixError:
            made = list(resolve.stack(*where))
        for resolution in reversed(made):  # the stack's own last: where it is, all are
            resolution.write()

    def _ran(self, release: Version, at: Workspace, declared: Matrix, measures: Settings) -> Report | str:
        """The report of the stack's cells at a release, or why there is none."""
        prepared = self.run(at, declared, measures)
        place = self._folder / str(release)
        shutil.rmtree(place, ignore_errors=True)
        collect.collect(rundir.assemble(prepared, declared, place), at)
        described = rundir.read(place)
        for cell in described.cells:
            if cell.status != "done":
                return f"{cell.name} {cell.status.replace('_', ' ')}: {cell.reason}"
        found = report.load(place / "report.json")
        self._reports[release] = found
        return found

    def _again(self, release: Version) -> bool:
        """Whether two processes more give the same bits, the second of each cell's measure of its repeatability."""
        known = self.trials[release]
        at, declared = self._resolved(release)
        found = self._ran(release, at, declared, {**self.measures, **_AGAIN})
        second = [] if isinstance(found, str) else [*_seconds(found)]
        held = not isinstance(found, str) and _bits(found) == known.bits and bool(second) and all(second)
        self.trials[release] = replace(known, reproduced=held)
        self.say(
            f"{self.asked.package} {release}: {'reproduced' if held else 'NOT reproduced'} by processes of its own"
        )
        return held

    # What is kept -----------------------------------------------------------------------------------------------------

    def _result(self, created: datetime, between: list[Version], outcome: Outcome) -> dict[str, Any]:
        any_report = next(iter(self._reports.values()))
        assert any_report.bitmatrix is not None
        return {
            "format": 1,
            "created": created.isoformat(timespec="seconds"),
            "stack": self.stack,
            "device": self.device,
            "device_model": any_report.bitmatrix.device_model,
            "isolation": self.isolation,
            "commit": any_report.bitmatrix.commit,
            "dirty": any_report.bitmatrix.dirty,
            "package": self.asked.package,
            "first": str(between[0]),
            "last": str(between[-1]),
            "by": self.by,
            "cells": list(any_report.results),
            "cases": any_report.cases,
            "committed_lock_sha256": self.committed.sha256,
            "releases": [str(version) for version in between],
            "trials": [asdict(self.trials[version]) for version in sorted(self.trials)],
            "outcome": asdict(outcome),
        }

    def table(self) -> Iterator[str]:
        """Each release that was tried: its lock, its bits, and what they are."""
        first = min(self.trials)
        rows = [("release", "lock", "bits", "against the first")]
        for version in sorted(self.trials):
            trial = self.trials[version]
            again = {True: "; reproduced", False: "; NOT reproduced", None: ""}[trial.reproduced]
            rows.append(
                (
                    trial.release,
                    (trial.lock_sha256 or "-")[:_SHOWN],
                    (trial.bits or "-")[:_SHOWN],
                    self._words(trial, first) + again,
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])

    def conclusion(self, outcome: Outcome) -> Iterator[str]:
        """What was found, in words."""
        package, first, last = self.asked.package, self.asked.first, self.asked.last
        if not outcome.reproduced:
            yield (
                f"the bits of {package} {_unsteady(self.trials)} aren't reproduced by another process: a search over "
                "releases says nothing before they are"
            )
        if outcome.release is None:
            yield f"{package} {first} and {last} give the same {self.by}: no release between them is to blame"
        elif len(outcome.suspects) == 1:
            yield f"{package} {outcome.release} is the first release with other {self.by} than {first}"
        else:
            listed = ", ".join(outcome.suspects)
            yield f"the {self.by} change after {package} {outcome.before}, with one of {listed}:"
            yield "what lies between was skipped, so it can't be told which"
        if outcome.release is not None:
            yield f"from {package} {outcome.before} to {outcome.release}:"
            yield from (f"  {line}" for line in outcome.lines)


def _bits(found: Report) -> str:
    assert found.bitmatrix is not None
    return sha256_json(found.bitmatrix.digests)


def _verdicts(found: Report) -> dict[str, list[str]]:
    assert found.bitmatrix is not None
    return {cell: list(one.kinds) for cell, one in (found.bitmatrix.verdicts or {}).items()}


def _seconds(found: Report) -> Iterator[bool]:
    """Of each cell whether its second process gave the same bits."""
    assert found.bitmatrix is not None
    for cell in found.results:
        measured = (found.bitmatrix.measures or {}).get(cell)
        second = measured.second_process if measured else None
        yield second is not None and second.status == "done" and not second.differ


def _unsteady(trials: dict[Version, Trial]) -> str:
    return " and ".join(trial.release for trial in trials.values() if trial.reproduced is False)


def _named(values: list[str]) -> str:
    more = f" and {len(values) - _MOST_NAMES} more" if len(values) > _MOST_NAMES else ""
    return ", ".join(values[:_MOST_NAMES]) + more
