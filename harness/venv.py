"""Virtual environments: a stack where no engine answers, from the same lock and by the same two steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness import wheelhouse
from harness.errors import BitmatrixError, Unavailable
from harness.files import locked, sha256_json, write_json
from harness.lock import Lock
from harness.pipsite import BUNDLES, Site
from harness.process import logged

_LIST = (
    "import importlib.metadata, json, sys; "
    "print(json.dumps([sys.version, sorted((d.name, d.version) for d in importlib.metadata.distributions())]))"
)


@dataclass(frozen=True, kw_only=True)
class StackVenv:
    """A virtual environment that holds exactly a lock."""

    python: Path
    identity: str


def ensure(lock: Lock, *, python: str, index: str | None, cache: Path, log: Path) -> StackVenv:
    """The virtual environment of a lock, made unless the cache has it.

    Raises Unavailable when this host has no such Python, BitmatrixError with a failed step's own words.
    """
    interpreter = _interpreter(python)
    version = subprocess.run([interpreter, "-VV"], capture_output=True, text=True, check=True).stdout.strip()
    key = sha256_json([lock.sha256, str(interpreter), version])[:16]
    folder = cache / "venvs" / key
    stamp = folder / "bitmatrix.json"
    with locked(folder.with_suffix(".lock")):
        if not stamp.is_file():
            log.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            _make(lock, folder, interpreter, python=python, index=index, cache=cache, log=log)
            packages = installed(folder / "bin" / "python")
            write_json(stamp, {"lock": lock.sha256, "python": version, "packages": packages})
    identity = sha256_json(["venv", lock.sha256, str(interpreter), version])
    return StackVenv(python=folder / "bin" / "python", identity=identity)


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


def _make(
    lock: Lock, folder: Path, interpreter: str, *, python: str, index: str | None, cache: Path, log: Path
) -> None:
    logged([interpreter, "-m", "venv", str(folder)], log=log, what="making a virtual environment")
    pip = [str(folder / "bin" / "python"), "-m", "pip"]

    def fetch(path: Path, wheels: Path, settings: Path, site: Site) -> None:
        command = [*pip, "download", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off"]
        logged(
            [*command, "--requirement", str(path), "--dest", str(wheels)],
            log=log,
            what="fetching the lock's packages",
            environment={**plain_environment(), "PIP_CONFIG_FILE": str(settings), **site.proxies},
        )

    wheels = wheelhouse.ensure(lock, python=python, index=index, cache=cache, fetch=fetch)
    command = [*pip, "install", "--no-index", "--find-links", str(wheels), "--require-hashes", "--no-deps"]
    try:
        logged(
            [*command, "--progress-bar", "off", "--requirement", str(lock.path)],
            log=log,
            what="installing from the wheelhouse",
            environment={**plain_environment(), "PIP_CONFIG_FILE": os.devnull},
        )
    except BitmatrixError:
        wheelhouse.forget(lock, python=python, cache=cache)
        raise
    # The environment holds exactly the lock, as an image does.
    logged([*pip, "uninstall", "--yes", "pip", "setuptools"], log=log, what="removing pip from the environment")


def plain_environment() -> dict[str, str]:
    """This environment without what would steer Python, or pip past the settings that `pipsite` found."""
    steering = ("PIP_", "PYTHON", *BUNDLES)
    return {name: value for name, value in os.environ.items() if not name.startswith(steering)}
