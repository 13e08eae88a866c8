"""The audit of a run from its own files: whether they are what was recorded, and whether the report follows from them.

It trusts nothing that was remembered: every file is read and hashed again, and every comparison made again. It shows
that a run is whole and consistent; that nobody made it up as a whole, a signature of its provenance shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import (
    capture,
    collect,
    engine,
    lock,
    page,
    preparation,
    provenance,
    render,
    report,
    rundir,
    runtime,
    tensors,
)
from harness.capture import Record
from harness.errors import BitmatrixError
from harness.files import read_json, sha256_file, sha256_json
from harness.progress import Progress
from harness.rundir import Run, RunCell
from harness.workspace import Workspace

_MOST = 5


def audit(folder: Path, workspace: Workspace, progress: Progress, *, images: bool) -> list[str]:
    """What doesn't hold of a run, a line each that names the file and the place; empty when all of it holds.

    `images`: also that the engine has every image of the run under its recorded id.
    """
    # A pipe or a device in a file's place would keep its reader for ever.
    irregular = [path for path in sorted(folder.rglob("*")) if not (path.is_file() or path.is_dir())]
    if irregular:
        return [f"{path.relative_to(folder)}: is no regular file; nothing of the run was read" for path in irregular]
    try:
        described = rundir.read(folder)
    except BitmatrixError as error:
        return [str(error)]
    problems: list[str] = []
    with progress.step("holding every file against the provenance"):
        problems += _files(folder)
    for cell in described.cells:
        with progress.step(f"hashing {cell.name}"):
            problems += _cell(folder, described, cell)
    problems += _locks(folder, described)
    if images:
        problems += _images(described)
    with progress.step("making every comparison again"):
        problems += _report(folder, workspace, described)
    return list(dict.fromkeys(problem.replace(f"{folder}/", "") for problem in problems))


def notes(described: Run, workspace: Workspace) -> Iterator[str]:
    """What a reader should know beside: where this checkout isn't the run's."""
    if described.checkout is None:
        return
    now = runtime.hashes(workspace.kernels / described.op)
    if now != (described.checkout.cell_sha256, described.checkout.op_sha256):
        yield f"this checkout's code isn't the run's; to make the run again: git checkout {described.commit}"
    for name, digest in described.checkout.locks.items():
        path = workspace.root / name
        if not path.is_file() or lock.read(path).sha256 != digest:
            yield f"{name} isn't the run's any more; the run's own copy is {rundir.LOCKS}/{name}"


def _files(folder: Path) -> Iterator[str]:
    """Every file against the statement's digests, then the statement against one made again."""
    path = folder / provenance.FILE
    if not path.is_file():
        yield f"{path}: is missing; where the files are known to be whole, nox -s collect -- {folder} writes it"
        return
    try:
        stated: dict[str, Any] = read_json(path)
        listed = {entry["name"]: entry["digest"]["sha256"] for entry in _listed(stated)}
    except (BitmatrixError, KeyError, TypeError, AttributeError):
        yield f"{path}: no statement of provenance: it was cut short or changed"
        return
    there = {path.relative_to(folder).as_posix(): path for path in provenance.files(folder)}
    there["report.json"] = folder / "report.json"
    found = [*_against(listed, there)]
    yield from found
    if not found:
        try:
            if path.read_text(encoding="utf-8") != provenance.text(folder):
                yield f"{path}: isn't the statement that these files give: it was changed"
        except (BitmatrixError, OSError, ValueError) as error:
            yield f"{path}: can't be made again: {error}"


def _listed(stated: dict[str, Any]) -> list[dict[str, Any]]:
    return [*stated["subject"], *stated["predicate"]["runDetails"]["byproducts"]]


def _against(listed: dict[str, str], there: dict[str, Path]) -> Iterator[str]:
    for name in sorted(listed.keys() | there.keys()):
        path = there.get(name)
        if name not in listed:
            yield f"{name}: is no file of this run: its provenance doesn't list it"
        elif path is None or path.is_symlink() or not path.is_file():
            yield f"{name}: is gone, or no regular file"
        elif sha256_file(path) != listed[name]:
            yield f"{name}: was changed: its digest isn't the one that {provenance.FILE} states"


def _cell(folder: Path, described: Run, cell: RunCell) -> Iterator[str]:
    if cell.status != "done":
        return
    place = folder / cell.folder
    try:
        record = capture.read(place)
        yield from _record(place / "record.json", described, cell, record)
        for case, stamp in record.files.items():
            path = capture.case_file(place, case)
            if stamp.sha256 is not None and sha256_file(path) != stamp.sha256:
                yield f"{path}: was changed: its digest isn't the recorded one"
            yield from _tensors(path, record.tensors.get(case, {}))
    except (BitmatrixError, OSError) as error:
        yield str(error)


def _tensors(path: Path, recorded: dict[str, capture.TensorFacts]) -> Iterator[str]:
    refs = tensors.read_header(path)
    for name in sorted(refs.keys() ^ recorded.keys()):
        yield f"{path}: {name} is in only one of the file and its record"
    for name in refs.keys() & recorded.keys():
        if tensors.sha256(refs[name]) != recorded[name].sha256:
            yield f"{path}: {name} has another digest than its record says"


def _record(path: Path, described: Run, cell: RunCell, record: Record) -> Iterator[str]:
    stack = (described.stacks.get(cell.stack) or {}).get("environment") or {}
    claimed = record.claims.get("tensors")
    facts = {case: {name: one.model_dump() for name, one in of.items()} for case, of in record.tensors.items()}
    for holds, what in (
        (record.key == cell.key == sha256_json(record.identity)[:32], "its key isn't the hash of its identity"),
        (record.cell == cell.name, f"it is of {record.cell}"),
        (record.identity.get("stack") == record.environment.get("identity"), "its stack isn't the one of its key"),
        (_ran_in(record.environment) == _ran_in(stack), f"its environment isn't that of the run's stack {cell.stack}"),
        (record.identity.get("inputs") == described.inputs, "its inputs aren't the run's"),
        (record.identity.get("device") == described.device, "its device isn't the run's"),
        (record.identity.get("cases") == described.cases, "its cases aren't the run's"),
        (record.library is None or record.library == described.library, "its kernel library isn't the run's"),
        (claimed == facts, "its process claims other tensors than were read"),
    ):
        if not holds:
            yield f"{path}: {what}"


def _ran_in(environment: dict[str, Any]) -> dict[str, Any]:
    """What of an environment a capture can depend on; whether its image was made here is another matter."""
    return {name: value for name, value in environment.items() if name != "image_as_made"}


def _locks(folder: Path, described: Run) -> Iterator[str]:
    """Each stack's record against the lock: the copy in the run's folder, of which the checkout needn't have any."""
    locks = described.checkout.locks if described.checkout else {}
    for name, digest in locks.items():
        try:
            made = lock.read(folder / rundir.LOCKS / name)
        except BitmatrixError as error:
            yield str(error)
            continue
        if made.sha256 != digest:
            yield f"{rundir.LOCKS}/{name}: isn't the lock of run.json"
        for stack, record in described.stacks.items():
            environment = (record or {}).get("environment") or {}
            same = (environment.get("lock_sha256"), environment.get("pinned")) == (made.sha256, made.versions())
            if environment.get("lock") == name and not same:
                yield f"run.json: stack {stack} says other versions than {rundir.LOCKS}/{name}"


def _images(described: Run) -> Iterator[str]:
    for stack, record in described.stacks.items():
        environment = (record or {}).get("environment") or {}
        image_id, name = environment.get("image_id"), environment.get("image")
        if image_id is None:
            continue
        try:
            if engine.find_image(image_id) is None:
                yield f"stack {stack}: the engine has no image {image_id} ({name}): load a bundle, or --no-images"
                continue
            tagged = engine.find_image(str(name))
        except BitmatrixError as error:
            yield f"stack {stack}: {error}; --no-images leaves the images out"
            return
        if tagged is not None and tagged.id != image_id:
            yield f"stack {stack}: {name} names {tagged.id} now, and the run was in {image_id}: it was rebuilt"


def _report(folder: Path, workspace: Workspace, described: Run) -> Iterator[str]:
    """The report as the captures give it, byte for byte."""
    try:
        op = preparation.load(workspace.kernels / described.op)
        again = collect.build(described, op, collect.gather(folder, described, op), collect.Comparisons(None))
    except (BitmatrixError, OSError) as error:
        yield f"report.json can't be made again: {error}"
        return
    texts = {"report.json": report.dumps(again), "report.md": render.markdown(again), "report.html": page.html(again)}
    for name, wanted in texts.items():
        path = folder / name
        try:
            found = path.read_bytes()
        except OSError as error:
            yield f"{name}: can't be read ({error.strerror})"
            continue
        if found != wanted.encode():
            yield from _apart(name, found, wanted)


def _apart(name: str, found: bytes, wanted: str) -> Iterator[str]:
    """Where a text isn't the wanted one: by key where it is JSON, else by line."""
    try:
        # Markdown and HTML are no JSON: they are held line by line.
        places = [*_differences(json.loads(found), json.loads(wanted), ())]
    except (ValueError, RecursionError):
        lines = zip(found.decode(errors="replace").splitlines(), wanted.splitlines(), strict=False)
        number = next((number for number, (one, other) in enumerate(lines, 1) if one != other), "the end")
        yield f"{name}: line {number}: isn't what the captures give"
        return
    for place in places[:_MOST]:
        yield f"{name}: {place}: isn't what the captures give"
    if len(places) > _MOST:
        yield f"{name}: {len(places) - _MOST} more places aren't what the captures give"
    if not places:
        yield f"{name}: says the same in other bytes than the captures give"


def _differences(found: Any, wanted: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*found, *wanted]):
            if (key in found) != (key in wanted):
                yield ".".join((*path, key))
            else:
                yield from _differences(found[key], wanted[key], (*path, key))
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from _differences(one, other, (*path, str(index)))
    elif found != wanted or type(found) is not type(wanted):
        yield ".".join(path) or "document"
