"""A run's folder: run.json says what was asked for and what became of it, and each cell's capture is linked in.

Hard links: a run stays whole when a cell is run again, and pruning one run's tensors leaves the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from harness import environment as environments
from harness import lock, run
from harness.capture import Status
from harness.errors import BadInput, BitmatrixError
from harness.files import read_json, temporary_folder, write_json, write_text
from harness.matrix import Matrix
from harness.plan import Cell
from harness.preparation import Blocked, Preparation
from harness.workspace import REPOSITORY, Workspace

_Closed = ConfigDict(extra="forbid", strict=True, frozen=True)


LOCKS = "locks"
"""The folder of a run with copies of its stacks' locks."""

_COUNTS = ("harness", "kernels", "images", "matrix.yaml")
_MOST_CHANGED = 200


class RunCell(BaseModel):
    """A requested cell and what became of it."""

    model_config = _Closed

    name: str
    folder: str
    candidate: str
    mode: str | None
    activated: bool
    """Whether its mode calls an activation."""
    stack: str
    source: str
    required: bool
    environment: dict[str, str]
    """What its mode declares."""
    status: Status
    reason: str | None
    log: str | None
    key: str | None


class Checkout(BaseModel):
    """The files that a run was made from."""

    model_config = _Closed

    cell_sha256: str
    """Of harness/cell."""
    op_sha256: str
    """Of the op's folder."""
    locks: dict[str, str]
    """Each stack's lock, relative to the checkout -> its digest; a copy lies in the run's folder."""
    changed: list[str]
    """Files that differ from the commit, in git's short form, and untracked ones where they could matter."""


class Run(BaseModel):
    """run.json: all that the collector needs beside the captures."""

    model_config = _Closed

    format: Literal[1] = 1
    run: str
    created: str
    device: dict[str, str | None]
    isolation: Literal["docker", "venv", "host"]
    narrowed: list[str]
    op: str
    cases: list[int]
    references: list[str]
    kind: str
    rfc: str
    libraries: dict[str, str]
    mode_environment: dict[str, dict[str, str]]
    inputs: dict[str, str | dict[str, str]]
    inputs_pinned: bool
    library: dict[str, Any] | None
    commit: str | None
    dirty: bool | None
    kernel_commit: str | None = None
    """The commit of the kernel under test's source, and whether it differs from it; null where it isn't known."""
    kernel_dirty: bool | None = None
    checkout: Checkout | None = None
    cells: list[RunCell]
    stacks: dict[str, dict[str, Any] | None]


def assemble(preparation: Preparation, matrix: Matrix, place: Path | None = None) -> Path:
    """Make the folder of a new run from what the store holds for its plan: `place`, else one of out/ by the clock."""
    workspace, plan = preparation.workspace, preparation.plan
    created = datetime.now(UTC)
    cells = [_cell(preparation, cell) for cell in plan.cells]
    device = matrix.device(plan.device)
    head, dirty, differing = _source()
    locks = _locks(preparation, matrix)
    kernel_commit, kernel_dirty = _kernel_source(matrix, preparation) or (head, dirty)
    place = place or free(workspace.out, f"{created:%Y%m%dT%H%M%SZ}-{plan.device}")
    library = preparation.library
    described = Run(
        run=place.name,
        created=created.isoformat(timespec="seconds"),
        device=asdict(preparation.device.facts),
        isolation=preparation.isolation,
        narrowed=plan.narrowed,
        op=plan.op,
        cases=list(plan.cases),
        references=list(plan.references),
        kind=matrix.report.kind,
        rfc=matrix.report.rfc,
        libraries=matrix.report.libraries,
        mode_environment={name: mode.environment for name, mode in device.modes.items()},
        inputs=dict(preparation.input_digests),
        inputs_pinned=preparation.inputs_pinned,
        library=None if library is None or isinstance(library, Blocked) else library.facts(),
        commit=head,
        dirty=dirty,
        kernel_commit=kernel_commit,
        kernel_dirty=kernel_dirty,
        checkout=Checkout(
            cell_sha256=preparation.runtime.cell_sha256,
            op_sha256=preparation.runtime.op_sha256,
            locks={name: lock.read(path).sha256 for name, path in locks.items()},
            changed=differing,
        ),
        cells=[cell for cell, _ in cells],
        stacks={name: asdict(record) if record else None for name, record in preparation.stacks.items()},
    )
    with temporary_folder(workspace.out, place.name) as folder:
        for cell, source in cells:
            if source is not None:
                _link(source, folder / cell.folder)
        for name, path in locks.items():
            write_text(folder / LOCKS / name, path.read_text(encoding="utf-8"))
        shutil.copyfile(workspace.matrix, folder / "matrix.yaml")
        write_json(folder / "run.json", described.model_dump())
        folder.rename(place)
    return place


def point_latest(workspace: Workspace, folder: Path) -> None:
    """Make `out/latest` name the run, if it is one of out/; the link is replaced in one step."""
    if folder.parent.resolve() != workspace.out.resolve():
        return
    temporary = workspace.out / f".latest.{uuid.uuid4().hex}.tmp"
    temporary.symlink_to(folder.name)
    temporary.rename(workspace.out / "latest")


def find(workspace: Workspace, name: str) -> Path:
    """The folder of a run, by path or by its name in out/. Raises BadInput when there is none."""
    for folder in (Path(name), workspace.out / name):
        if (folder / "run.json").is_file():
            return folder.resolve()
    raise BadInput(f"{name}: no run (a folder of {workspace.out} with a run.json)")


def read(folder: Path) -> Run:
    """run.json of a run's folder. Raises BadInput when it isn't one."""
    path = folder / "run.json"
    try:
        return Run.model_validate(read_json(path))
    except OSError as error:
        raise BadInput(f"{path}: can't be read ({error.strerror}); name a folder of out/ that holds a run") from error
    except (ValidationError, BitmatrixError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(
            f"{path}: not the record of a run ({first}); collect from the store instead: nox -s collect"
        ) from error


class _Fate(NamedTuple):
    """What became of a cell, and the folder that holds its record."""

    status: Status
    reason: str | None
    log: str | None = None
    key: str | None = None
    source: Path | None = None


def _cell(preparation: Preparation, cell: Cell) -> tuple[RunCell, Path | None]:
    fate = _fate(preparation, cell)
    described = RunCell(
        name=cell.name,
        folder=cell.folder,
        candidate=cell.candidate,
        mode=cell.mode,
        activated=cell.activation is not None,
        stack=cell.stack,
        source=cell.source,
        required=cell.required,
        environment=preparation.mode_environments.get(cell.mode or "", {}),
        status=fate.status,
        reason=fate.reason,
        log=fate.log,
        key=fate.key,
    )
    return described, fate.source


def _fate(preparation: Preparation, cell: Cell) -> _Fate:
    ready = preparation.resolve(cell)
    if isinstance(ready, Blocked):
        # Relative to the run's folder, as every path of a report: a run may be looked at elsewhere.
        log = None if ready.log is None else os.path.relpath(ready.log, preparation.workspace.out / "run")
        return _Fate(ready.status, ready.reason, log=log)
    found = run.settled(preparation, ready.key)
    if found is None:
        reason = "has no record: it was never run, or was interrupted; nox -s matrix runs it"
        return _Fate("not_run", reason, key=ready.key)
    workspace = preparation.workspace
    if found.status == "done":
        return _Fate("done", None, key=ready.key, source=workspace.cells / ready.key)
    log = f"{cell.folder}/log.txt"
    return _Fate(found.status, found.reason, log=log, key=ready.key, source=workspace.attempts / ready.key)


def _link(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.is_file() and not path.is_symlink():
            os.link(path, target / path.name)


def free(out: Path, name: str) -> Path:
    """A folder name that no other run has."""
    number, place = 2, out / name
    while place.exists():
        place, number = out / f"{name}-{number}", number + 1
    return place


def _kernel_source(matrix: Matrix, preparation: Preparation) -> tuple[str | None, bool | None] | None:
    """The pinned commit of the kernel candidate's source; None where the device has no such candidate or source.

    In host isolation the interpreter's own installation is what runs, whatever is pinned: nothing is known.
    """
    device = matrix.device(preparation.plan.device)
    candidate = device.candidates.get(matrix.report.kernel or "")
    sources = device.stacks[candidate.stack].sources if candidate and candidate.stack else []
    if not sources:
        return None
    return (None, None) if preparation.isolation == "host" else (sources[0].commit, False)


def _locks(preparation: Preparation, matrix: Matrix) -> dict[str, Path]:
    """The locks of the run's stacks, by their names relative to the checkout."""
    workspace, device = preparation.workspace, preparation.plan.device
    stacks = matrix.device(device).stacks
    paths = [
        path
        for name in preparation.stacks
        if stacks[name].base
        for path in (
            environments.lock_of(workspace, matrix, device, name),
            environments.build_lock_of(workspace, matrix, device, name),
        )
        if path.is_file()
    ]
    return {environments.relative(path, workspace): path for path in paths}


def commit() -> str | None:
    """This repository's commit; None outside a checkout."""
    return _source()[0]


def changed() -> bool:
    """Whether this repository differs from its commit, or has none."""
    found, dirty, files = _source()
    return found is None or bool(dirty) or bool(files)


def _source() -> tuple[str | None, bool | None, list[str]]:
    """This repository's commit, whether tracked files differ from it, and which; None outside a checkout."""

    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=False
            )
        except OSError:
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    tracked = git("status", "--porcelain", "--untracked-files=no")
    untracked = git("status", "--porcelain", "--untracked-files=all", "--", *_COUNTS) or ""
    if head is None or tracked is None:
        return head, None, []
    lines = [*tracked.splitlines(), *(line for line in untracked.splitlines() if line.startswith("??"))]
    return head, bool(tracked), [line.strip() for line in lines[:_MOST_CHANGED]]
