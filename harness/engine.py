"""The Docker engine, through its SDK: is it there, and containers that never outlive their use."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import docker
from docker import types
from docker.errors import APIError, DockerException, NotFound
from docker.models.containers import Container
from requests.exceptions import RequestException

from harness.errors import BitmatrixError

LABEL = "io.bitmatrix"
"""Marks every container and image made here; its sub-labels say for which run, stack or lock."""

_ANSWER_SECONDS = 20
_TRANSFER_SECONDS = 3600
_LOG_BYTES = 16 << 20
_LEFT = timedelta(days=1)

FAULTS = (DockerException, RequestException, OSError)
"""What the SDK raises when the engine refuses a request, goes away or never was there."""


class EngineError(BitmatrixError):
    """The engine is not there, went away, or refused a request."""


@functools.cache
def client() -> docker.DockerClient:
    """The engine of DOCKER_HOST or the local socket. Raises EngineError when none answers."""
    try:
        engine = docker.from_env(timeout=_ANSWER_SECONDS)
        engine.ping()
    except FAULTS as error:
        raise EngineError(
            f"no Docker engine answers ({_first_line(error)}); start it (`systemctl start docker`, or `dockerd` as "
            "root), set DOCKER_HOST, or choose --isolation venv"
        ) from error
    return engine


@functools.cache
def patient() -> docker.DockerClient:
    """The same engine, for what moves gigabytes: it says nothing while it commits, pulls or imports an image."""
    client()
    return docker.from_env(timeout=_TRANSFER_SECONDS)


def commit(made: Container, tag: str, changes: list[str]) -> None:
    """Keep a container's files as the image `tag`, with these changes in a Dockerfile's words."""
    with explained(f"committing {tag}"):
        repository, _, label = tag.rpartition(":")
        patient().api.commit(str(made.id), repository=repository, tag=label, changes=changes)


def answers() -> bool:
    """Whether an engine answers."""
    try:
        client()
    except EngineError:
        return False
    return True


@contextlib.contextmanager
def explained(action: str) -> Iterator[None]:
    """Turn the SDK's errors into an EngineError that says what was being done."""
    try:
        yield
    except FAULTS as error:
        raise EngineError(f"{action}: {_first_line(error)}") from error


def find_image(name: str) -> Any | None:
    """The local image of that name or digest, or None."""
    with explained(f"looking for the image {name}"):
        try:
            return client().images.get(name)
        except NotFound:
            return None


@dataclass(frozen=True)
class Mount:
    """A bind mount: read-only unless it says otherwise."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """A container to be made. `options` are further arguments of the SDK's `containers.create`."""

    image: str
    command: list[str]
    purpose: str
    mounts: tuple[Mount, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a container or process ended. `exit_code` is None when it had to be stopped for its time."""

    exit_code: int | None
    out_of_memory: bool = False


def confined() -> dict[str, Any]:
    """Options of every container made here: no capabilities, and no way to more privileges."""
    return {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}


def as_caller() -> dict[str, Any]:
    """Options of one whose files must be the caller's: `confined`, and the caller's user and group."""
    return {**confined(), "user": f"{os.getuid()}:{os.getgid()}"}


@contextlib.contextmanager
def container(request: Request) -> Iterator[Container]:
    """A created container of a name of its own; removed by that name at the end, whatever happens between."""
    name = f"bitmatrix-{request.purpose}-{uuid.uuid4().hex[:12]}"
    engine = client()
    try:
        with explained(f"creating a container of {request.image}"):
            made = engine.containers.create(
                request.image,
                request.command,
                name=name,
                # A published image may start a program of its own; the command is all that runs here.
                entrypoint=[""],
                environment=request.environment,
                labels={LABEL: request.purpose, f"{LABEL}.owner": _owner(), **request.labels},
                # Not `volumes`: the SDK would declare each target as a volume, and a commit would keep that.
                mounts=[
                    types.Mount(mount.target, str(mount.source), type="bind", read_only=not mount.writable)
                    for mount in request.mounts
                ],
                stdin_open=True,
                **request.options,
            )
        yield made
    finally:
        remove(name)


def remove(name: str) -> None:
    """Remove a container by name, running or not; one that isn't there is as good as removed.

    An engine that went away keeps it; `sweep` removes it at the next start.
    """
    with contextlib.suppress(*FAULTS):
        client().api.remove_container(name, force=True, v=True)


def run(made: Container, *, log: Path, seconds: float) -> Ending:
    """Start `made`, write what it prints to `log` (at most 16 MiB), and wait until it ends or its time is over.

    Its standard input stays open while this process lives: a cell takes its closing as the order to stop, so a
    container ends even when this process is killed.
    """
    with explained("running a container"):
        lifeline = made.attach_socket(params={"stdin": 1, "stream": 1})
        # The SDK hands out a file over the socket; closing that alone leaves the socket, and so the lifeline, open.
        socket_below = getattr(lifeline, "_sock", None)
        follower = threading.Thread(target=_follow, args=(made, log), daemon=True)
        try:
            made.start()
            follower.start()
            state = _wait(made, seconds)
        finally:
            with contextlib.suppress(OSError):
                lifeline.close()
                if socket_below is not None:
                    socket_below.close()
        follower.join(timeout=10)
        made.reload()
        return Ending(exit_code=state, out_of_memory=bool(made.attrs["State"].get("OOMKilled")))


def _wait(made: Container, seconds: float) -> int | None:
    """The exit code, or None when the time was over and the container was killed."""
    try:
        # A connection that breaks is not a timeout: only the time tells.
        return int(made.wait(timeout=seconds)["StatusCode"])
    except RequestException as error:
        if not _timed_out(error):
            raise
        made.kill()
        return None


def _timed_out(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, TimeoutError) or "timed out" in str(error).lower():
            return True
        error = error.__cause__ or error.__context__
    return False


def _follow(made: Container, log: Path) -> None:
    """Copy the container's output to `log`. What it prints is untrusted: only so much is kept."""
    kept = 0
    with contextlib.suppress(*FAULTS), log.open("ab") as stream:
        for chunk in made.logs(stream=True, follow=True):
            if kept < _LOG_BYTES:
                stream.write(chunk[: _LOG_BYTES - kept])
                stream.flush()
            elif kept - len(chunk) < _LOG_BYTES:
                stream.write(b"\n[bitmatrix: the log is cut here; the rest was not kept]\n")
            kept += len(chunk)


def sweep() -> list[str]:
    """Remove the containers of processes that live no more; returns their names.

    An engine may serve other users, other hosts of the same name, and processes of other namespaces, whose numbers mean
    nothing here: what those own is left alone until it has been at its end for a day.
    """
    swept = []
    with explained("looking for left containers"):
        for left in client().containers.list(all=True, filters={"label": f"{LABEL}.owner"}, ignore_removed=True):
            gone = _gone(left.labels.get(f"{LABEL}.owner", ""))
            if _ended_long_ago(left) if gone is None else gone:
                remove(str(left.name))
                swept.append(str(left.name))
    return swept


def _owner() -> str:
    """This process, in words that no other process shares: not on another host, after a start, or in a namespace."""
    return f"{_place()}:{os.getpid()}:{_started(os.getpid())}"


def _place() -> str:
    """Where a process number means what it means here, and can be seen: host, start, namespace, user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/pid").readlink()
    return f"{socket.gethostname()}/{boot}/{str(namespace).strip('pid:[]')}/{os.getuid()}"


def _gone(owner: str) -> bool | None:
    """Whether a container's owner lives no more; None when that can't be told from here."""
    place, _, rest = owner.partition(":")
    pid, _, started = rest.partition(":")
    if place != _place() or not pid.isdigit():
        return None
    return _started(int(pid)) != started


def _ended_long_ago(left: Container) -> bool:
    state = left.attrs["State"]
    since = left.attrs["Created"] if state["Status"] == "created" else state["FinishedAt"]
    # The engine's times have nanoseconds; the first year stands for never.
    age = datetime.now(UTC) - datetime.fromisoformat(f"{since[:19]}+00:00")
    return state["Status"] in ("created", "exited", "dead") and age > _LEFT


def _started(pid: int) -> str:
    """The start time of a process in clock ticks since boot, or "" when there is none (proc(5), field 22)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _first_line(error: BaseException) -> str:
    text = error.explanation if isinstance(error, APIError) and error.explanation else str(error)
    return " ".join(str(text).split())[:300]
