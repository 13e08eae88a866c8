"""A stack's environment, ready to run cells in: an image, a virtual environment, or this interpreter.

What became of each stack is written to out/stacks/, so that a run can say why a cell has no result, and the collector
can name what a capture ran in without an engine.
"""

from __future__ import annotations

import platform
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness import build, engine, image, lock, published, venv
from harness.build import Builds
from harness.errors import BadInput, BitmatrixError, Unavailable
from harness.files import read_json, sha256_json, write_json
from harness.lock import Lock
from harness.matrix import DeviceName, Matrix
from harness.plan import IsolationName
from harness.workspace import Workspace

StackStatus = Literal["done", "unavailable", "failed"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where a stack's cells run. `identity` is what the resume key holds of it."""

    stack: str
    isolation: IsolationName
    python: str
    """The interpreter, as the isolation sees it."""
    identity: str
    base: str | None = None
    image: str | None = None
    image_id: str | None = None
    image_environment: dict[str, str] = field(default_factory=dict)
    image_lock: str | None = None
    """The digest of the lock that the image's own label names."""
    image_as_made: bool | None = None
    """Whether the image is the one that was made here under its name; None when none was made with this cache."""
    lock: str | None = None
    lock_sha256: str | None = None
    pinned: dict[str, str] = field(default_factory=dict)
    """Package -> version of the lock."""
    made_from_source: dict[str, Any] = field(default_factory=dict)
    """`wheels`: built file -> SHA-256; `nvcc`: the options it was called with; `sources`: name -> commit and tree."""


@dataclass(frozen=True, kw_only=True)
class StackRecord:
    """What became of a stack in one isolation."""

    status: StackStatus
    reason: str | None
    log: str | None
    environment: Environment | None


def lock_of(workspace: Workspace, matrix: Matrix, device: DeviceName, stack: str) -> Path:
    """Where the lock of a stack lies for this architecture and its base's Python; a published image's digest."""
    declared = matrix.device(device).stacks[stack]
    if declared.base is None:
        return published.path_of(workspace.locks, stack=stack, device=device, architecture=platform.machine())
    python = matrix.bases[declared.base].python
    return lock.path_of(workspace.locks, stack=stack, device=device, architecture=platform.machine(), python=python)


def build_lock_of(workspace: Workspace, matrix: Matrix, device: DeviceName, stack: str) -> Path:
    """Where the lock of a stack's build tools lies."""
    return lock.build_path_of(lock_of(workspace, matrix, device, stack))


def check_locks(workspace: Workspace, matrix: Matrix, device: DeviceName) -> None:
    """Raise BadInput unless every lock that exists meets its stack's requirements; all problems at once."""
    problems = []
    for name, stack in matrix.device(device).stacks.items():
        if stack.base is None:
            continue
        wanted = [(lock_of(workspace, matrix, device, name), stack.requirements)]
        if stack.build:
            wanted.append((build_lock_of(workspace, matrix, device, name), stack.build.requirements))
        for path, requirements in wanted:
            try:
                if path.is_file():
                    lock.check(lock.read(path), requirements)
            except BadInput as error:
                problems.append(str(error))
    if problems:
        raise BadInput("\n".join(problems))


def prepare(
    workspace: Workspace, matrix: Matrix, device: DeviceName, stack: str, isolation: IsolationName
) -> StackRecord:
    """Make the stack's environment, or find it, and record what became of it."""
    log = workspace.stacks / f"{device}-{stack}-{isolation}.log"
    try:
        environment = _make(workspace, matrix, device, stack, isolation, log)
        record = StackRecord(status="done", reason=None, log=None, environment=environment)
    except Unavailable as error:
        record = StackRecord(status="unavailable", reason=str(error), log=None, environment=None)
    except BadInput:
        raise
    except Exception as error:
        record = StackRecord(status="failed", reason=_reason(error), log=str(log), environment=None)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as stream:
            traceback.print_exc(file=stream)
    write_json(_record_path(workspace, device, stack, isolation), asdict(record))
    return record


def left_out(
    workspace: Workspace, device: DeviceName, stack: str, isolation: IsolationName, reason: str
) -> StackRecord:
    """Record that a stack isn't made at all, and why."""
    record = StackRecord(status="unavailable", reason=reason, log=None, environment=None)
    write_json(_record_path(workspace, device, stack, isolation), asdict(record))
    return record


def recorded(workspace: Workspace, device: DeviceName, stack: str, isolation: IsolationName) -> StackRecord | None:
    """What `prepare` last recorded, or None when it never ran."""
    path = _record_path(workspace, device, stack, isolation)
    if not path.is_file():
        return None
    data: dict[str, Any] = read_json(path)
    environment = data.pop("environment")
    return StackRecord(**data, environment=Environment(**environment) if environment else None)


def _record_path(workspace: Workspace, device: str, stack: str, isolation: str) -> Path:
    return workspace.stacks / f"{device}-{stack}-{isolation}.json"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, BitmatrixError) else f"{type(error).__name__}: {error}"


def _make(
    workspace: Workspace, matrix: Matrix, device: DeviceName, name: str, isolation: IsolationName, log: Path
) -> Environment:
    stack = matrix.device(device).stacks[name]
    if isolation == "host":
        return _host(workspace, matrix, device, name)
    if stack.base is None:
        return _published(workspace, matrix, device, name, isolation)
    base = matrix.bases[stack.base]
    pins = _lock(workspace, lock_of(workspace, matrix, device, name), stack.requirements, device, name)
    builds = _builds(workspace, matrix, device, name, pins)
    recipe = workspace.root / "images"
    common: dict[str, Any] = {
        "stack": name,
        "isolation": isolation,
        "lock": relative(pins.path, workspace),
        "lock_sha256": pins.sha256,
        "pinned": pins.versions(),
    }
    if isolation == "venv":
        made = venv.ensure(
            pins, builds, python=base.python, index=stack.index, recipe=recipe, cache=workspace.cache, log=log
        )
        return Environment(
            **common, python=str(made.python), identity=made.identity, made_from_source=made.made_from_source
        )
    built = image.ensure(
        f"{device}-{name}",
        pins,
        builds,
        base_name=stack.base,
        base=base,
        index=stack.index,
        recipe=recipe,
        cache=workspace.cache,
        log=log,
    )
    return Environment(
        **common,
        python=image.PYTHON,
        identity=built.image_id,
        base=built.base,
        image=built.name,
        image_id=built.image_id,
        image_environment=built.environment,
        image_lock=built.lock,
        image_as_made=built.as_made,
        made_from_source=built.made_from_source,
    )


def _published(
    workspace: Workspace, matrix: Matrix, device: DeviceName, name: str, isolation: IsolationName
) -> Environment:
    """A published image as it is; its own variables are on record."""
    stack = matrix.device(device).stacks[name]
    assert stack.python is not None
    if isolation != "docker":
        raise Unavailable("it is a published image, which only --isolation docker runs")
    digest = stack.image
    if digest is None:
        assert stack.tag is not None
        digest = published.read(lock_of(workspace, matrix, device, name), stack.tag, device=device, stack=name)
    found = published.ensure(name, digest)
    return Environment(
        stack=name,
        isolation=isolation,
        python=stack.python,
        identity=found.image_id,
        base=digest,
        image=digest,
        image_id=found.image_id,
        image_environment=found.environment,
    )


def _builds(workspace: Workspace, matrix: Matrix, device: DeviceName, name: str, pins: Lock) -> Builds:
    """What is built for the stack. Raises BadInput when the lock has no package that is to be."""
    stack = matrix.device(device).stacks[name]
    tools = None
    if stack.build:
        path = build_lock_of(workspace, matrix, device, name)
        tools = _lock(workspace, path, stack.build.requirements, device, name)
    builds = build.plan(stack, tools)
    for package in builds.from_source:
        if package not in pins.pins:
            raise BadInput(
                f"{pins.path}: has no {package}, which stack {name} builds from source; correct `build.from_source`"
            )
    return builds


def _lock(workspace: Workspace, path: Path, requirements: list[str], device: DeviceName, name: str) -> Lock:
    if not path.is_file():
        raise Unavailable(
            f"stack {name} has no lock for {device} on {platform.machine()} ({relative(path, workspace)}): "
            f"nox -s lock -- --device {device} --stack {name}"
        )
    pins = lock.read(path)
    lock.check(pins, requirements)
    return pins


def relative(path: Path, workspace: Workspace) -> str:
    """A path as seen from the checkout, where it lies in it; a lock by its name there, wherever it lies."""
    if path.is_relative_to(workspace.locks):
        return f"images/locks/{path.relative_to(workspace.locks)}"
    return str(path.relative_to(workspace.root)) if path.is_relative_to(workspace.root) else str(path)


def _host(workspace: Workspace, matrix: Matrix, device: DeviceName, name: str) -> Environment:
    """This interpreter. What the lock would pin is kept beside it: the report names what differs."""
    identity = {"executable": sys.executable, "version": sys.version, "packages": venv.installed(Path(sys.executable))}
    path = lock_of(workspace, matrix, device, name)
    pins = lock.read(path) if matrix.device(device).stacks[name].base and path.is_file() else None
    return Environment(
        stack=name,
        isolation="host",
        python=sys.executable,
        identity=sha256_json(identity),
        lock=relative(path, workspace) if pins else None,
        lock_sha256=pins.sha256 if pins else None,
        pinned=pins.versions() if pins else {},
    )


def docker_needed(isolation: IsolationName) -> None:
    """Raise BadInput when the isolation is docker and no engine answers."""
    if isolation == "docker":
        try:
            engine.client()
        except engine.EngineError as error:
            raise BadInput(str(error)) from error
