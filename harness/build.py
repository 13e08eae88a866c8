"""Builds: wheels made from source for a stack, without a network, in an environment of locked packages alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from harness.errors import BitmatrixError, Unavailable
from harness.files import locked, read_json, sha256_file, sha256_json, temporary_folder, write_json, write_text
from harness.lock import Lock, Pin, text
from harness.matrix import Source, Stack
from harness.source import Tree

_SURVEYED = re.compile(r"^(-gencode|-O|--?(ftz|prec-div|prec-sqrt|fmad)|-D|-std|--?expt|-arch|--generate-code|-X)")


@dataclass(frozen=True, kw_only=True)
class Builds:
    """What a stack holds beside its lock's wheels: packages and sources that are built, and source trees."""

    lock: Lock | None = None
    """The build tools."""
    from_source: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    capability: str | None = None
    """The GPU that a source's build is for."""

    @property
    def built(self) -> tuple[Source, ...]:
        """The sources that are built into wheels."""
        return tuple(source for source in self.sources if source.kind == "build")

    @property
    def modules(self) -> list[str]:
        """What must import once all is installed."""
        return [module for source in self.sources for module in source.imports]

    def identity(self, recipe: Path) -> list[Any] | None:
        """What of it can change an environment; None when there is nothing."""
        if not (self.sources or self.from_source):
            return None
        tools = [sha256_file(recipe / "build.sh"), self.lock.sha256 if self.lock else None]
        sources = [source.model_dump() for source in self.sources]
        return [*tools, list(self.from_source), self.environment, sources, self.capability]


@dataclass(frozen=True, kw_only=True)
class Built:
    """Wheels by file name with their SHA-256, and the options that nvcc was called with."""

    folder: Path
    wheels: dict[str, str]
    nvcc: list[str]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of images/build.sh: it reads all of this and writes into `out` alone."""

    lock: Path
    wheels: Path
    build_lock: Path
    build_wheels: Path
    sources: tuple[Path, ...]
    environment: dict[str, str]
    gpu: bool
    out: Path


def plan(stack: Stack, lock: Lock | None) -> Builds:
    """What of a stack is built. Raises Unavailable when a build is for a GPU and none answers."""
    wants_gpu = any(source.gpu for source in stack.sources)
    return Builds(
        lock=lock,
        from_source=tuple(canonicalize_name(name) for name in (stack.build.from_source if stack.build else [])),
        environment=dict(stack.build.environment) if stack.build else {},
        sources=tuple(stack.sources),
        capability=_capability() if wants_gpu else None,
    )


def ensure(
    builds: Builds, lock: Lock, trees: list[Tree], *, wheels: Path, build_wheels: Path, base: Any, cache: Path,
    recipe: Path, run: Callable[[Job], None],
) -> Built:  # fmt: skip
    """The wheels that a stack's builds make, made by `run` unless the cache has them unchanged.

    Raises BitmatrixError with the build's own words.
    """
    assert builds.lock is not None
    key = sha256_json([builds.identity(recipe), lock.sha256, base])[:16]
    folder = cache / "built" / key
    with locked(folder.with_suffix(".lock")):
        found = _read(folder)
        if found is None:
            shutil.rmtree(folder, ignore_errors=True)
            with temporary_folder(folder.parent, key) as temporary, temporary_folder(folder.parent, "lock") as place:
                write_text(place / "lock.txt", text(lock.pins.values(), without=builds.from_source))
                archives = [_archive(wheels, lock.pins[name]) for name in builds.from_source]
                names = {source.name for source in builds.built}
                run(
                    Job(
                        lock=place / "lock.txt",
                        wheels=wheels,
                        build_lock=builds.lock.path,
                        build_wheels=build_wheels,
                        sources=(*archives, *(tree.path for tree in trees if tree.name in names)),
                        environment=builds.environment,
                        gpu=any(source.gpu for source in builds.built),
                        out=temporary,
                    )
                )
                _check(temporary, builds, lock)
                _write(temporary)
                temporary.rename(folder)
            found = _read(folder)
    assert found is not None
    return found


def record(built: Built | None, trees: list[Tree]) -> dict[str, Any]:
    """What of a stack came from source, for its record."""
    return {
        "wheels": built.wheels if built else {},
        "nvcc": built.nvcc if built else [],
        "sources": {tree.name: {"commit": tree.commit, "tree": tree.tree} for tree in trees},
    }


def _archive(wheels: Path, pin: Pin) -> Path:
    found = [path for path in wheels.iterdir() if path.suffix != ".whl" and sha256_file(path) in pin.hashes]
    if not found:
        raise BitmatrixError(f"{wheels}: the source archive of {pin.name} is gone or changed; remove this folder")
    return found[0]


def _check(folder: Path, builds: Builds, lock: Lock) -> None:
    """Raise BitmatrixError unless there is a wheel of each package in its locked version, and one a built source."""
    made = {name: version for name, version, *_ in (parse_wheel_filename(path.name) for path in folder.glob("*.whl"))}
    for name in builds.from_source:
        version, wanted = made.get(canonicalize_name(name)), Version(lock.pins[name].version)
        if version is None or version.public != wanted.public:
            raise BitmatrixError(f"building {name} made {version or 'no wheel'} where the lock pins {wanted}")
    if len(made) != len(builds.from_source) + len(builds.built):
        raise BitmatrixError(f"the builds made {', '.join(sorted(made)) or 'no wheel'}, not one wheel each")


def _write(folder: Path) -> None:
    wheels = {path.name: sha256_file(path) for path in sorted(folder.glob("*.whl"))}
    log = folder / "nvcc.log"
    words = log.read_text(encoding="utf-8", errors="replace").split() if log.is_file() else []
    lines = (f"./{name} --hash=sha256:{digest}\n" for name, digest in wheels.items())
    write_text(folder / "requirements.txt", "".join(lines))
    write_json(
        folder / "built.json", {"wheels": wheels, "nvcc": sorted({word for word in words if _SURVEYED.match(word)})}
    )


def _read(folder: Path) -> Built | None:
    """What an earlier build left, if its wheels still are what it made."""
    if not (folder / "built.json").is_file():
        return None
    data = read_json(folder / "built.json")
    for name, digest in data["wheels"].items():
        if not (folder / name).is_file() or sha256_file(folder / name) != digest:
            return None
    return Built(folder=folder, wheels=data["wheels"], nvcc=data["nvcc"])


def _capability() -> str:
    """The compute capability of this host's first GPU, e.g. "9.0"."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    if answer is None or answer.returncode or not answer.stdout.strip():
        raise Unavailable(
            "a source of this stack is built for the GPU that it finds, and no NVIDIA GPU answers (`nvidia-smi` fails)"
        )
    return answer.stdout.split()[0]
