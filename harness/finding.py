"""Findings: where what really ran isn't what was pinned, or can't be shown to be. A pure function of a run's records.

An `error` means that the bits may come from something else than the pins; a `warning`, that nobody can tell or make it
again; a `note` is for the reader. `--strict` takes the first two as failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from harness.capture import Record
from harness.report import Finding, Severity
from harness.rundir import Run

_MOST_NAMES = 8
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


def of(described: Run, records: Mapping[str, Record]) -> list[Finding]:
    """Everything found of a run, the gravest first; `records` by cell, of those that are done."""
    found = [*_source(described), *_clock(described, records)]
    for stack, record in described.stacks.items():
        cells = [cell.name for cell in described.cells if cell.stack == stack and cell.name in records]
        stack_records = {name: records[name] for name in cells}
        found += _image(stack, (record or {}).get("environment") or {}, described)
        found += _as_recorded(stack, (record or {}).get("environment") or {}, stack_records, described)
        found += _packages(stack, stack_records, described)
    unique = list(dict.fromkeys(found))
    return sorted(unique, key=lambda finding: _SEVERITIES.index(finding.severity))


def serious(findings: list[Finding | str]) -> list[Finding]:
    """Those that `--strict` fails on."""
    return [finding for finding in findings if isinstance(finding, Finding) and finding.severity != "note"]


def _found(severity: Severity, about: str, message: str) -> Finding:
    return Finding(severity=severity, about=about, message=message)


# The source ----------------------------------------------------------------------------------------------------------


def _source(described: Run) -> Iterator[Finding]:
    if described.commit is None:
        yield _found("warning", "source", "the harness ran from no commit: nobody can check it out again")
    changed = described.checkout.changed if described.checkout else []
    if described.dirty or changed:
        which = f": {_names(changed)}" if changed else ""
        yield _found("warning", "source", f"what ran differs from commit {described.commit}{which}")
    if not described.inputs_pinned:
        yield _found("warning", "inputs", "the repository doesn't pin every digest of the inputs")
    if described.narrowed:
        yield _found("note", "run", f"narrowed by {' '.join(described.narrowed)}: not comparable with the full order")


def _clock(described: Run, records: Mapping[str, Record]) -> Iterator[Finding]:
    for name, record in records.items():
        try:
            backwards = datetime.fromisoformat(record.started) > datetime.fromisoformat(described.created)
        except (ValueError, TypeError):
            yield _found("error", name, "its record or the run has no valid time")
            continue
        if backwards:
            message = f"started at {record.started}, after the run of {described.created}: the clock ran backwards"
            yield _found("warning", name, message)


# A stack's environment -----------------------------------------------------------------------------------------------


def _image(stack: str, environment: Mapping[str, Any], described: Run) -> Iterator[Finding]:
    image, lock = environment.get("image"), environment.get("lock")
    label = environment.get("image_lock")
    if environment.get("image_as_made") is False:
        message = f"{image} names another image than the one that was made here from the lock: it was tagged or rebuilt"
        yield _found("error", stack, f"{message}; remove the tag and run again")
    elif image and lock and environment.get("image_as_made") is None:
        yield _found("note", stack, f"{image} wasn't made with this cache; its packages show what it holds")
    if image and lock and "image_lock" in environment and label != environment.get("lock_sha256"):
        made = f"of lock {str(label)[:12]}" if label else "of no lock"
        yield _found("error", stack, f"{image} is labelled as {made}, not {str(environment.get('lock_sha256'))[:12]}")
    pinned = described.checkout.locks.get(lock) if described.checkout and lock else None
    if pinned and pinned != environment.get("lock_sha256"):
        message = f"ran from another {lock} ({str(environment.get('lock_sha256'))[:12]}) than the checkout's"
        yield _found("error", stack, f"{message} ({pinned[:12]}); run again: nox -s matrix")


def _as_recorded(
    stack: str, environment: Mapping[str, Any], records: Mapping[str, Record], described: Run
) -> Iterator[Finding]:
    """Each record against what the run says of its stack, its code and its kernel."""
    for name, record in records.items():
        for part in ("image_id", "lock_sha256"):
            ran, said = record.environment.get(part), environment.get(part)
            if ran != said:
                yield _found("error", name, f"ran with {part} {ran}, the run's stack {stack} has {said}")
        code = described.checkout.cell_sha256 if described.checkout else None
        if code and record.identity.get("cell_sha256") != code:
            yield _found("error", name, "ran another harness/cell than the checkout's")
        kernel = record.library and record.library.get("sha256")
        if kernel and kernel != (described.library or {}).get("sha256"):
            yield _found("error", name, "ran another kernel library than the run's")


# What its processes saw ----------------------------------------------------------------------------------------------


def _packages(stack: str, records: Mapping[str, Record], described: Run) -> Iterator[Finding]:
    grave: Severity = "warning" if described.isolation == "host" else "error"
    for record in records.values():
        facts = record.claims.get("facts")
        facts = facts if isinstance(facts, dict) else {}
        if record.environment.get("lock"):
            yield from _against_lock(stack, facts, record.environment, grave)
        duplicates = _mapping(facts.get("duplicate_distributions"))
        for package, versions in duplicates.items():
            listed = _names(versions) if isinstance(versions, list) else "several versions"
            yield _found(grave, stack, f"{package} is installed more than once: {listed}")
        for module, seen in _mapping(facts.get("modules")).items():
            yield from _module(stack, str(module), _mapping(seen), _places(facts, record.environment), grave)


def _against_lock(
    stack: str, facts: Mapping[str, Any], environment: Mapping[str, Any], grave: Severity
) -> Iterator[Finding]:
    installed = facts.get("distributions")
    if not isinstance(installed, dict):
        yield _found("warning", stack, "its processes couldn't say which packages are installed")
        return
    pinned, made = environment.get("pinned", {}), _from_source(environment)
    for name, version in pinned.items():
        if installed.get(name) != version and name not in made:
            yield _found(grave, stack, f"{name} is {installed.get(name, 'not installed')}, its lock pins {version}")
    extra = [f"{name} {version}" for name, version in installed.items() if name not in pinned and name not in made]
    if extra and grave == "error":
        for package in extra:
            yield _found(grave, stack, f"{package} is installed, and its lock has no such package")
    elif extra:
        yield _found("note", stack, f"{len(extra)} packages that its lock has not: {_names(extra)}")


def _from_source(environment: Mapping[str, Any]) -> set[str]:
    """The packages that were built for the stack: their version is that of their source."""
    names = set()
    for file in _mapping(_mapping(environment.get("made_from_source")).get("wheels")):
        try:
            names.add(str(parse_wheel_filename(str(file))[0]))
        except InvalidWheelFilename:
            continue
    return names


def _places(facts: Mapping[str, Any], environment: Mapping[str, Any]) -> list[PurePosixPath]:
    """Where a stack's modules may lie: below its own folder, and in its Python's standard library. Empty: anywhere."""
    if not environment.get("lock") or environment.get("isolation") == "host":
        return []
    stdlib = _mapping(facts.get("python")).get("stdlib")
    own = PurePosixPath(str(environment.get("python", ""))).parent.parent
    return [own, *([PurePosixPath(stdlib)] if isinstance(stdlib, str) else [])]


def _module(
    stack: str, name: str, seen: Mapping[str, Any], places: list[PurePosixPath], grave: Severity
) -> Iterator[Finding]:
    file, package = seen.get("file"), seen.get("distribution")
    if isinstance(file, str) and places and not any(PurePosixPath(file).is_relative_to(place) for place in places):
        yield _found(grave, stack, f"{name} was imported from {file}, which is outside of the stack")
    elif seen.get("owned") is False:
        yield _found(grave, stack, f"{name} was imported from {file}, which isn't a file of the package {package}")
    version, installed = seen.get("version"), seen.get("installed")
    if isinstance(package, str) and canonicalize_name(name) == package and _other(version, installed):
        yield _found(grave, stack, f"the module {name} says it is {version}, its package is {installed}")


def _other(version: object, installed: object) -> bool:
    """Whether two versions are of other releases; a module's own text may leave suffixes out."""
    try:
        return Version(str(version)).release[:3] != Version(str(installed)).release[:3]
    except InvalidVersion:
        return False


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(values: list[str]) -> str:
    more = f" and {len(values) - _MOST_NAMES} more" if len(values) > _MOST_NAMES else ""
    return ", ".join(map(str, values[:_MOST_NAMES])) + more
