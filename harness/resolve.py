"""Resolving locks: which files would be installed for a stack's requirements today, with their hashes.

pip resolves inside the stack's own base, and so for the base's Python. uv resolves on the host for any Python and
platform, which a stack needs whose base can't be made where its lock is.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness import base, lock, published, venv
from harness import environment as environments
from harness.errors import BadInput, BitmatrixError, Unavailable
from harness.files import read_json, sha256_file, temporary_folder, write_text
from harness.image import networked
from harness.lock import Lock, Pin
from harness.matrix import DeviceName, Matrix, Stack
from harness.pipsite import Site
from harness.plan import IsolationName
from harness.process import logged
from harness.wheelhouse import with_site
from harness.workspace import Workspace

_PLATFORM = "manylinux_2_34"
"""The C library floor that uv resolves for: that of the CUDA packages' newest wheels, below every base's own."""

_SOURCE_ONLY = re.compile(r"Wheels are required for `([^`]+)`")


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """What a stack's requirements resolve to today; nothing is written until `write` is called."""

    path: Path
    lines: list[str]
    """What the new file changes, a line a package."""
    write: Callable[[], None]


def stack(
    workspace: Workspace,
    matrix: Matrix,
    device: DeviceName,
    name: str,
    isolation: IsolationName,
    *,
    held: list[Pin] | None = None,
) -> Iterator[Resolution]:
    """Resolve a stack's lock, then that of its build tools; of a published image, its tag's digest.

    Packages that `held` pins get no other version there. Raises BitmatrixError with the resolver's own words.
    """
    declared = matrix.device(device).stacks[name]
    path = environments.lock_of(workspace, matrix, device, name)
    if declared.tag:
        yield _tag(path, declared.tag, device, name)
    if declared.base is None:
        return
    resolver = _Resolver(workspace, matrix, device, name, isolation)
    pins = resolver.pins(declared.requirements, within=held)
    yield _resolution(path, name, device, declared.requirements, pins)
    if declared.build:
        tools = resolver.pins(declared.build.requirements, within=pins)
        # What the stack's own lock has, the build has from there; but what is asked for by name stands in its lock.
        named = {canonicalize_name(Requirement(text).name) for text in declared.build.requirements}
        have = {pin.name for pin in pins} - named
        tools = [pin for pin in tools if pin.name not in have]
        yield _resolution(lock.build_path_of(path), name, device, declared.build.requirements, tools)


def disproved(workspace: Workspace, matrix: Matrix, device: DeviceName, name: str) -> Iterator[str]:
    """What is wrong with a stack's locks, a line each; nothing when every lock still satisfies its requirements.

    First the files alone: each as it was made, for the declared requirements. Then by resolution: with every pin held,
    the requirements and all that they bring must resolve to exactly the lock, in files that the indexes still have.
    Raises BitmatrixError when no index can be asked.
    """
    declared = matrix.device(device).stacks[name]
    path = environments.lock_of(workspace, matrix, device, name)
    if declared.tag:
        published.read(path, declared.tag, device=device, stack=name)
    if declared.base is None:
        return
    resolver = _Resolver(workspace, matrix, device, name, "venv")
    made = _intact(path, declared.requirements)
    yield from resolver.disproved(made, declared.requirements, {})
    if declared.build:
        tools = _intact(lock.build_path_of(path), declared.build.requirements)
        # What the stack's own lock has, the build has from there.
        yield from resolver.disproved(tools, declared.build.requirements, made.pins)


def _intact(path: Path, requirements: list[str]) -> Lock:
    made = lock.read(path)
    lock.check(made, requirements)
    return made


def chosen(matrix: Matrix, device: DeviceName | None, stacks: list[str]) -> list[tuple[DeviceName, str]]:
    """The stacks to resolve: all of all devices, or as narrowed. Raises BadInput for a name that isn't there."""
    names: list[DeviceName] = ["cpu", "cuda"]
    devices = [device] if device else [name for name in names if getattr(matrix.devices, name)]
    found = [(name, stack) for name in devices for stack in matrix.device(name).stacks]
    known = list(dict.fromkeys(stack for _, stack in found))
    for name in stacks:
        if name not in known:
            raise BadInput(f"--stack {name}: there is no such stack (known: {', '.join(known)})")
    return [(name, stack) for name, stack in found if not stacks or stack in stacks]


def changes(old: dict[str, Pin], new: Iterable[Pin]) -> list[str]:
    """What a new lock changes, a line a package, sorted by name."""
    lines, after_of = [], {pin.name: pin for pin in new}
    for name in sorted(old.keys() | after_of.keys()):
        before, after = old.get(name), after_of.get(name)
        if before and after and before.version == after.version:
            gone, come = set(before.hashes) - set(after.hashes), set(after.hashes) - set(before.hashes)
            if gone or come:
                lines.append(f"{name}: {after.version}, {len(come)} files added and {len(gone)} gone")
        else:
            lines.append(f"{name}: {before.version if before else 'absent'} -> {after.version if after else 'absent'}")
    return lines


def _resolution(path: Path, name: str, device: DeviceName, requirements: list[str], pins: list[Pin]) -> Resolution:
    try:
        old = lock.read(path).pins if path.is_file() else {}
    except BadInput:
        old = {}  # it is damaged, and this is the remedy
    lines = changes(old, pins)
    return Resolution(
        path=path,
        lines=[f"{len(pins)} packages, {len(lines)} changed", *lines],
        write=partial(lock.write, path, stack=name, device=device, requirements=requirements, pins=pins),
    )


def _tag(path: Path, tag: str, device: DeviceName, name: str) -> Resolution:
    digest = published.resolve(tag)
    same = path.is_file() and digest in path.read_text(encoding="utf-8").splitlines()
    return Resolution(
        path=path,
        lines=[f"{tag} is {digest}" + (", as before" if same else "")],
        write=partial(published.write, path, tag, digest, device=device, stack=name),
    )


class _Resolver:
    """One stack's resolver: where it runs, for which Python, with which log."""

    def __init__(
        self, workspace: Workspace, matrix: Matrix, device: DeviceName, name: str, isolation: IsolationName
    ) -> None:
        self.workspace, self.name, self.isolation = workspace, name, isolation
        self.declared: Stack = matrix.device(device).stacks[name]
        assert self.declared.base is not None
        self.base_name = self.declared.base
        self.base = matrix.bases[self.base_name]
        self.log = workspace.stacks / f"{device}-{name}-lock.log"
        self.log.unlink(missing_ok=True)

    def pins(self, requirements: list[str], *, within: list[Pin] | None = None) -> list[Pin]:
        """What the requirements resolve to; of packages that `within` pins, that version."""
        if self.declared.resolver == "uv":
            return self._by_uv(requirements, within or [])
        with temporary_folder(self.workspace.stacks, "resolve") as folder:
            constraints = "".join(f"{pin.name}=={pin.version}\n" for pin in within or [])
            write_text(folder / "constraints.txt", constraints)
            with_site(folder, self.declared.index, self._pip(requirements, folder, constrained=within is not None))
            report = read_json(folder / "report.json")
        return [_pin(item, self.log) for item in report["install"]]

    def disproved(self, made: Lock, requirements: list[str], also: dict[str, Pin]) -> Iterator[str]:
        """What of a lock a resolution with every pin held doesn't give; pins of `also` may stand for others."""
        held = {**also, **made.pins}
        try:
            found = {pin.name: pin for pin in self._by_uv(requirements, list(held.values()))}
        except BitmatrixError as error:
            yield f"{made.path}: doesn't resolve with its own pins: {error}"
            return
        for name in sorted(made.pins.keys() | (found.keys() - also.keys())):
            pin, given = made.pins.get(name), found.get(name)
            if pin is None:
                yield f"{made.path}: lacks {name}, which its requirements bring"
            elif given is None:
                yield f"{made.path}: pins {name}, which no requirement brings"
            elif given.version != pin.version:
                yield f"{made.path}: pins {name} {pin.version}, its requirements bring {given.version}"
            elif set(pin.hashes).isdisjoint(given.hashes):
                yield f"{made.path}: no index has {name} {pin.version} with a hash that is pinned"

    def _by_uv(self, requirements: list[str], held: list[Pin]) -> list[Pin]:
        with temporary_folder(self.workspace.stacks, "resolve") as folder:
            write_text(folder / "constraints.txt", "".join(f"{pin.name}=={pin.version}\n" for pin in held))
            with_site(folder, self.declared.index, self._uv(requirements, folder))
            return list(lock.read(folder / "lock.txt").pins.values())

    def _uv(self, requirements: list[str], folder: Path) -> Callable[[Path, Site], None]:
        write_text(folder / "requirements.txt", "".join(f"{line}\n" for line in requirements))
        sources = self.declared.build.from_source if self.declared.build else []
        command = [
            *[_uv_program(), "pip", "compile", "--generate-hashes", "--no-config", "--no-header", "--no-annotate"],
            *["--python-version", self.base.python, "--python-platform", f"{platform.machine()}-{_PLATFORM}"],
            # Of equal indexes the best version, as pip chooses: by default uv takes a name's first index alone.
            *["--index-strategy", "unsafe-best-match", "--only-binary", ":all:", "--no-progress"],
            *(word for name in sources for word in ("--no-binary", name)),
            *["--constraints", str(folder / "constraints.txt"), "--output-file", str(folder / "lock.txt")],
            str(folder / "requirements.txt"),
        ]

        def run(_: Path, site: Site) -> None:
            own = {name: value for name, value in venv.plain_environment().items() if not name.startswith("UV_")}
            places = {"UV_CACHE_DIR": str(self.workspace.cache / "uv")}
            try:
                logged(
                    command,
                    log=self.log,
                    what=f"resolving {self.name}",
                    environment={**own, **places, **site.for_uv()},
                )
            except BitmatrixError as error:
                raise _explained(error, self.log) from error

        return run

    def _pip(self, requirements: list[str], folder: Path, *, constrained: bool) -> Callable[[Path, Site], None]:
        script = self.workspace.root / "images" / "resolve.sh"

        def run(settings: Path, site: Site) -> None:
            docker = self.isolation == "docker"
            place = "/mnt/out" if docker else str(folder)
            within = ["--constraint", f"{place}/constraints.txt"] if constrained else []
            arguments = [f"{place}/report.json", *within, *requirements]
            if docker:
                image = base.ensure(self.base_name, self.base, cache=self.workspace.cache, log=self.log).name
                what = f"resolving {self.name}"
                networked(script, arguments, folder, settings, site, image=image, what=what, log=self.log)
            else:
                _on_host(script, arguments, settings, site, python=self.base.python, log=self.log)

        return run


def _explained(error: BitmatrixError, log: Path) -> BitmatrixError:
    """uv's words, with the remedy when a package has no wheel."""
    source_only = _SOURCE_ONLY.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not source_only:
        return error
    name = source_only[-1]
    return BitmatrixError(
        f"{error}; {name} has no wheel that fits in any index that this site reaches: name it in the stack's "
        "`build.from_source`, or give an index that has one as the stack's `index`"
    )


def _uv_program() -> str:
    try:
        from uv import find_uv_bin
    except ImportError as error:
        raise Unavailable(
            f"`resolver: uv` needs uv: {sys.executable} -m pip install -c constraints.txt -e ."
        ) from error
    return str(find_uv_bin())


def _pin(item: dict[str, Any], log: Path) -> Pin:
    metadata, download = item["metadata"], item["download_info"]
    digest = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    url = urlsplit(download.get("url", ""))
    if digest is None and url.scheme == "file":
        digest = sha256_file(Path(unquote(url.path)))  # pip reports none for a local file
    if digest is None:
        raise BitmatrixError(f"{metadata['name']}: pip reports no SHA-256 for {url.geturl()}; see {log}")
    return Pin(name=canonicalize_name(metadata["name"]), version=metadata["version"], hashes=(digest,))


def _on_host(script: Path, arguments: list[str], settings: Path, site: Site, *, python: str, log: Path) -> None:
    if sys.version_info[:2] != tuple(map(int, python.split("."))):
        raise Unavailable(f"without an engine a lock for Python {python} is resolved by that Python; this is another")
    logged(
        ["/bin/sh", str(script), *arguments],
        log=log,
        what="resolving",
        environment={
            **venv.plain_environment(),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PIP_CONFIG_FILE": str(settings),
            **site.proxies,
        },
    )
