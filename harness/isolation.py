"""One process a cell: in a container, a virtual environment, or this interpreter.

In each, the process gets exactly the declared variables and a recorded few that no program can do without, finds
nothing but the runtime on its path, and ends when this process does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker import types

from harness import engine, toolkit
from harness.engine import Ending, Mount, Request
from harness.environment import Environment
from harness.errors import Unavailable
from harness.files import write_json
from harness.lease import Lease
from harness.library import Library
from harness.matrix import Limits
from harness.plan import Cell, IsolationName, Plan

_INSIDE = Path("/bitmatrix")
_SCRATCH = "/tmp"  # noqa: S108 - a tmpfs of the container's own
_SHM_BYTES = 1 << 30
_MEASURE_SHARE = 0.15
"""Of a cell's time, what one measure may take: five leave a quarter to the captures."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One cell to run: what it needs, and the folder it writes into."""

    cell: Cell
    plan: Plan
    environment: Environment
    library: Library | None
    lease: Lease | None
    """The GPU that is this cell's alone; None on a cpu."""
    runtime: Path
    inputs: Path
    input_digests: Mapping[str, Any]
    op: str
    folder: Path
    """Holds job.json and log.txt; the cell may write below `folder/output` alone."""

    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of what the process measures after its captures."""

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.folder / "log.txt"

    @property
    def output(self) -> Path:
        """The one folder that the process may write."""
        return self.folder / "output"


def choose(asked: IsolationName | None) -> tuple[IsolationName, str]:
    """The isolation, and why: as asked, else docker where an engine answers, else venv. host only when asked."""
    if asked:
        return asked, "asked for"
    if engine.answers():
        return "docker", "an engine answers"
    return "venv", "no Docker engine answers"


def launch(task: Task) -> Ending:
    """Run the cell to its end; nothing is left running.

    Raises EngineError when the engine goes away, Unavailable when it can't hand the GPU to a container.
    """
    task.output.mkdir()
    return _container(task) if task.environment.isolation == "docker" else _process(task)


def _job(task: Task, paths: Mapping[str, Path]) -> dict[str, Any]:
    cell, library = task.cell, task.library
    return {
        "schema": 1,
        "cell": cell.name,
        "candidate": cell.candidate,
        "mode": cell.mode,
        "device": task.plan.device,
        "op_folder": str(paths["runtime"] / "kernels" / task.op),
        "cases": list(task.plan.cases),
        "threads": cell.threads,
        "activation": cell.activation.model_dump() if cell.activation else None,
        "environment": cell.environment,
        "inputs": {"folder": str(paths["inputs"]), "digests": task.input_digests},
        "library": {"path": str(paths["library"]), "sha256": library.sha256} if library else None,
        "output": str(paths["output"]),
        "lifeline": True,
        "measures": dict(task.measures),
        "measure_seconds": max(1, int(task.plan.limits.seconds * _MEASURE_SHARE)),
    }


def _command(task: Task, job: Path) -> list[str]:
    return [task.environment.python, "-P", "-s", "-B", "-m", "harness.cell", str(job)]


def _environment(task: Task, runtime: Path, scratch: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of the process; the declared variables win."""
    return {
        **inherited,
        "HOME": scratch,
        "USER": "bitmatrix",
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(runtime),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        # Two modes must never share compiled kernels.
        "TRITON_CACHE_DIR": f"{scratch}/triton",
        "XDG_CACHE_HOME": f"{scratch}/cache",
        **task.cell.environment,
    }


# Docker --------------------------------------------------------------------------------------------------------------


def _container(task: Task) -> Ending:
    try:
        with engine.container(container_request(task)) as made:
            return engine.run(made, log=task.log, seconds=task.plan.limits.seconds)
    except engine.EngineError as error:
        if any(words in str(error) for words in toolkit.REFUSALS):
            raise Unavailable(f"{error}: {toolkit.MISSING}") from error
        raise


def container_request(task: Task) -> Request:
    """What is asked of the engine for a cell."""
    inside = {name: _INSIDE / name for name in ("runtime", "inputs", "output")}
    mounts = [Mount(task.runtime, str(inside["runtime"])), Mount(task.inputs, str(inside["inputs"]))]
    if task.library:
        inside["library"] = _INSIDE / "lib" / task.library.path.name
        mounts.append(Mount(task.library.path, str(inside["library"])))
    job = task.folder / "job.json"
    write_json(job, _job(task, inside))
    mounts += [Mount(job, str(_INSIDE / "job.json")), Mount(task.output, str(inside["output"]), writable=True)]
    assert task.environment.image_id is not None
    return Request(
        image=task.environment.image_id,
        purpose="cell",
        command=_command(task, _INSIDE / "job.json"),
        mounts=tuple(mounts),
        environment=_environment(task, inside["runtime"], _SCRATCH, {}),
        labels={f"{engine.LABEL}.cell": task.cell.name},
        options={**_restrictions(task.plan.limits), **_devices(task.lease)},
    )


def _restrictions(limits: Limits) -> dict[str, Any]:
    return {
        **engine.as_caller(),
        # A process that is the container's first ignores signals it has no handler for: it must not be the first.
        "init": True,
        "network_mode": "none",
        "read_only": True,
        # Triton compiles into it and loads what it compiled: it must be executable.
        "tmpfs": {_SCRATCH: "rw,exec,nosuid,nodev,mode=1777"},
        "mem_limit": f"{limits.memory_gib}g",
        "pids_limit": limits.processes,
        "shm_size": _SHM_BYTES,
        "working_dir": _SCRATCH,
        # The engine keeps its own copy of what is printed, until the container is removed.
        "log_config": types.LogConfig(type="json-file", config={"max-size": "32m", "max-file": "2"}),
    }


def _devices(lease: Lease | None) -> dict[str, Any]:
    # Where the toolkit can't be seen the hook is asked for all the same: the engine's own refusal says what it lacks.
    return {"device_requests": [toolkit.request(lease.gpu, toolkit.way() or "hook")]} if lease else {}


# venv and host -------------------------------------------------------------------------------------------------------

_INHERITED = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME")
"""What a process on the host can't do without: programs, and where a driver's libraries lie."""


def _process(task: Task) -> Ending:
    paths = {"runtime": task.runtime, "inputs": task.inputs, "output": task.output}
    if task.library:
        paths["library"] = task.library.path
    job = task.folder / "job.json"
    write_json(job, _job(task, {name: path.resolve() for name, path in paths.items()}))
    scratch = task.folder / "scratch"
    scratch.mkdir()
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment = _environment(task, task.runtime.resolve(), str(scratch.resolve()), inherited)
    held: tuple[int, ...] = ()
    if task.lease:
        environment["CUDA_VISIBLE_DEVICES"] = task.lease.gpu.uuid
        # The cell holds the lease too: were this process killed, the GPU is free when the cell has ended, not before.
        held = (task.lease.descriptor,)
    with task.log.open("wb") as log, _group(_command(task, job), environment, log, scratch, held) as process:
        try:
            return Ending(exit_code=process.wait(timeout=task.plan.limits.seconds))
        except subprocess.TimeoutExpired:
            return Ending(exit_code=None)


@contextlib.contextmanager
def _group(
    command: list[str], environment: dict[str, str], log: Any, scratch: Path, descriptors: tuple[int, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, the whole of which is killed at the end. Its stdin is its lifeline."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=scratch,
        start_new_session=True,
        pass_fds=descriptors,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()
