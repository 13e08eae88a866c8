"""Virtual environments: a stack where no engine answers, from the same lock and by the same two steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import build, source, wheelhouse
from harness.build import Builds, Built, Job
from harness.errors import BitmatrixError, Unavailable
from harness.files import locked, read_json, sha256_json, temporary_folder, write_json, write_text
from harness.lock import Lock, text
from harness.pipsite import BUNDLES, Site
from harness.process import logged
from harness.source import Tree

_LIST = (
    "import importlib.metadata, json, sys; "
    "print(json.dumps([sys.version, sorted((d.name, d.version) for d in importlib.metadata.distributions())]))"
)


@dataclass(frozen=True, kw_only=True)
class StackVenv:
    """A virtual environment that holds exactly a lock, and what is built or taken from source."""

    python: Path
    identity: str
    made_from_source: dict[str, Any]


def ensure(
    lock: Lock, builds: Builds, *, python: str, index: str | None, recipe: Path, cache: Path, log: Path
) -> StackVenv:
    """The virtual environment of a lock, made unless the cache has it.

    Raises Unavailable when this host has no such Python, BitmatrixError with a failed step's own words.
    """
    interpreter = _interpreter(python)
    version = subprocess.run([interpreter, "-VV"], capture_output=True, text=True, check=True).stdout.strip()
    parts = [lock.sha256, str(interpreter), version, *filter(None, [builds.identity(recipe)])]
    folder = cache / "venvs" / sha256_json(parts)[:16]
    stamp = folder / "bitmatrix.json"
    with locked(folder.with_suffix(".lock")):
        if not stamp.is_file():
            log.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            site = _Site(folder, interpreter, python=python, index=index, recipe=recipe, cache=cache, log=log)
            made = site.make(lock, builds)
            packages = installed(folder / "bin" / "python")
            known = {"lock": lock.sha256, "python": version, "packages": packages, "made_from_source": made}
            write_json(stamp, known)
        made_from_source = read_json(stamp).get("made_from_source") or {}
    return StackVenv(
        python=folder / "bin" / "python", identity=sha256_json(["venv", *parts]), made_from_source=made_from_source
    )


def installed(python: Path) -> object:
    """The interpreter's version text and every distribution that it sees, with its version."""
    listed = subprocess.run([python, "-I", "-c", _LIST], capture_output=True, text=True, check=True)
    return json.loads(listed.stdout)


def _interpreter(version: str) -> str:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        # Not this environment's link to it: that may go away while the cache stays.
        return str(Path(sys._base_executable).resolve())  # type: ignore[attr-defined]
    found = shutil.which(f"python{version}")
    if found is None:
        raise Unavailable(
            f"the lock is for Python {version} and this host has no python{version} on its PATH: install it, "
            "or use --isolation docker"
        )
    return found


class _Site:
    """One virtual environment in the making."""

    def __init__(
        self, folder: Path, interpreter: str, *, python: str, index: str | None, recipe: Path, cache: Path, log: Path
    ) -> None:
        self.folder, self.interpreter, self.recipe, self.log, self.cache = folder, interpreter, recipe, log, cache
        self.pip = [str(folder / "bin" / "python"), "-m", "pip"]
        self.fetched = partial(wheelhouse.ensure, python=python, index=index, cache=cache, fetch=self._fetch)

    def make(self, lock: Lock, builds: Builds) -> dict[str, Any]:
        """As an image is made: fetch with the network, then build and install from what was fetched alone."""
        logged([self.interpreter, "-m", "venv", str(self.folder)], log=self.log, what="making a virtual environment")
        trees = [source.ensure(declared, cache=self.cache, log=self.log) for declared in builds.sources]
        wheels = self.fetched(lock, from_source=builds.from_source)
        built = self._built(lock, builds, trees, wheels)
        try:
            with temporary_folder(wheels.parent, "install") as place:
                write_text(place / "lock.txt", text(lock.pins.values(), without=builds.from_source))
                self._install("--find-links", str(wheels), "--requirement", str(place / "lock.txt"))
        except BitmatrixError:
            wheelhouse.forget(wheels)
            raise
        if built:
            self._install("--requirement", str(built.folder / "requirements.txt"), place=built.folder)
        kinds = {declared.name: declared.kind for declared in builds.sources}
        self._put_on_path([tree for tree in trees if kinds[tree.name] == "tree"])
        # The environment holds exactly the lock, as an image does: what a fresh one brings goes, unless it is pinned.
        surplus = sorted({"pip", "setuptools"} - lock.pins.keys())
        if surplus:
            logged([*self.pip, "uninstall", "--yes", *surplus], log=self.log, what="removing pip from the environment")
        for module in builds.modules:
            logged([self.pip[0], "-I", "-c", f"import {module}"], log=self.log, what=f"importing {module}")
        return build.record(built, trees) if builds.identity(self.recipe) else {}

    def _built(self, lock: Lock, builds: Builds, trees: list[Tree], wheels: Path) -> Built | None:
        if not (builds.from_source or builds.built):
            return None
        assert builds.lock is not None
        return build.ensure(
            builds,
            lock,
            trees,
            wheels=wheels,
            build_wheels=self.fetched(builds.lock),
            base=["venv", self.interpreter],
            cache=self.cache,
            recipe=self.recipe,
            run=self._build,
        )

    def _build(self, job: Job) -> None:
        with temporary_folder(self.cache / "built", "work") as work:
            given = [job.lock, job.wheels, job.build_lock, job.build_wheels, work, job.out, *job.sources]
            logged(
                ["/bin/sh", str(self.recipe / "build.sh"), self.interpreter, *map(str, given)],
                log=self.log,
                what="building from source",
                environment={**plain_environment(), "PIP_CONFIG_FILE": os.devnull, **job.environment},
            )

    def _fetch(self, path: Path, wheels: Path, settings: Path, site: Site) -> None:
        command = ["download", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off"]
        logged(
            [*self.pip, *command, "--requirement", str(path), "--dest", str(wheels)],
            log=self.log,
            what="fetching the lock's packages",
            environment={**plain_environment(), "PIP_CONFIG_FILE": str(settings), **site.proxies},
        )

    def _install(self, *arguments: str, place: Path | None = None) -> None:
        command = ["install", "--no-index", "--require-hashes", "--no-deps", "--progress-bar", "off"]
        logged(
            [*self.pip, *command, *arguments],
            log=self.log,
            what="installing from the wheelhouse",
            environment={**plain_environment(), "PIP_CONFIG_FILE": os.devnull},
            place=place,
        )

    def _put_on_path(self, trees: list[Tree]) -> None:
        if not trees:
            return
        for tree in trees:
            shutil.copytree(tree.path, self.folder / "src" / tree.name, symlinks=True)
        (packages,) = self.folder.glob("lib/python3*/site-packages")
        lines = "".join(f"{self.folder / 'src' / tree.name}\n" for tree in trees)
        write_text(packages / "bitmatrix-sources.pth", lines)


def plain_environment() -> dict[str, str]:
    """This environment without what would steer Python, or pip past the settings that `pipsite` found."""
    steering = ("PIP_", "PYTHON", *BUNDLES)
    return {name: value for name, value in os.environ.items() if not name.startswith(steering)}
