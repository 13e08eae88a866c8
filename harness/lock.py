"""Locks: each stack's packages by version and hash, for one device, architecture and Python."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.errors import BadInput
from harness.files import write_text

_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[A-Za-z0-9._, -]*\])?==(?P<version>[^\s;\\]+)"
    r"(\s*;(?P<marker>[^\\]*?))?\s*(?P<hashes>(\s*--hash=sha256:[0-9a-f]{64})+)"
)
_FILE = re.compile(r".*-(?P<architecture>x86_64|aarch64)-py(?P<python>3\.[0-9]+)(-build)?\.txt")
_HEADER = "# requirements: "
_DIGEST = "# sha256 without this line: "


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One package: canonical name, exact version, the SHA-256 of every file that may be installed for it."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock as read from its file."""

    path: Path
    requirements: tuple[str, ...]
    pins: dict[str, Pin]
    sha256: str
    """Of the file without the line that states it: `grep -v '^# sha256' FILE | sha256sum`."""
    stated: str | None
    """The digest that the file states of itself; an edit by hand leaves it behind."""

    def versions(self) -> dict[str, str]:
        """Package -> version."""
        return {name: pin.version for name, pin in self.pins.items()}


def build_path_of(path: Path) -> Path:
    """Beside a stack's lock that of its build tools: `images/locks/cuda/megatron-x86_64-py3.12-build.txt`."""
    return path.with_name(f"{path.name.removesuffix('.txt')}-build.txt")


def path_of(locks: Path, *, stack: str, device: str, architecture: str, python: str) -> Path:
    """`images/locks/cpu/torch-x86_64-py3.11.txt`."""
    return locks / device / f"{stack}-{architecture}-py{python}.txt"


def read(path: Path) -> Lock:
    """Read a lock. Raises BadInput with the file and line of what isn't a pin with hashes."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: can't be read ({error.strerror}); make it with: nox -s lock") from error
    pins: dict[str, Pin] = {}
    requirements: tuple[str, ...] = ()
    for number, line in _logical_lines(content):
        if line.startswith(_HEADER):
            requirements = tuple(line.removeprefix(_HEADER).split())
        if line.startswith("#") or not line:
            continue
        match = _PIN.fullmatch(line)
        if match is None:
            raise BadInput(f"{path}:{number}: `{line[:80]}` is no pin with hashes; make the lock again: nox -s lock")
        if not _applies(match["marker"], path, number):
            continue
        name = canonicalize_name(match["name"])
        if name in pins:
            raise BadInput(f"{path}:{number}: {name} is pinned twice; make the lock again: nox -s lock")
        hashes = tuple(part.removeprefix("--hash=sha256:") for part in match["hashes"].split())
        pins[name] = Pin(name=name, version=match["version"], hashes=hashes)
    rest, stated = _apart(content)
    return Lock(path=path, requirements=requirements, pins=pins, sha256=_sha256(rest), stated=stated)


def _apart(content: str) -> tuple[str, str | None]:
    """A lock's text without the line that states its digest, and that digest."""
    lines = content.splitlines(keepends=True)
    stated = [line for line in lines if line.startswith(_DIGEST)]
    rest = "".join(line for line in lines if not line.startswith(_DIGEST))
    return rest, stated[0].removeprefix(_DIGEST).strip() if len(stated) == 1 else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _applies(marker: str | None, path: Path, number: int) -> bool:
    """Whether a line is for the platform that the lock's name says: Linux, its architecture, its Python."""
    if marker is None:
        return True
    named = _FILE.fullmatch(path.name)
    target = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    target["platform_machine"] = named["architecture"] if named else platform.machine()
    if named:
        target |= {"python_version": named["python"], "python_full_version": f"{named['python']}.0"}
    try:
        return Marker(marker).evaluate({**target})
    except InvalidMarker as error:
        raise BadInput(f"{path}:{number}: `{marker.strip()}` is no marker; make the lock again: nox -s lock") from error


def check(lock: Lock, requirements: list[str]) -> None:
    """Raise BadInput unless the lock is as it was made, for exactly these requirements, and meets each of them."""
    problems = []
    if lock.stated is None:
        problems.append("doesn't state its own digest, so that an edit by hand would not show")
    elif lock.stated != lock.sha256:
        problems.append(f"was edited after it was made: its digest is {lock.sha256[:12]}, it states {lock.stated[:12]}")
    if set(lock.requirements) != set(requirements):
        made, wanted = " ".join(sorted(lock.requirements)), " ".join(sorted(requirements))
        problems.append(f"was made for `{made}`, the matrix wants `{wanted}`")
    for wanted_text in requirements:
        requirement = Requirement(wanted_text)
        pin = lock.pins.get(canonicalize_name(requirement.name))
        if pin is None:
            problems.append(f"has no {requirement.name}")
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            problems.append(f"pins {pin.name} {pin.version}, the matrix wants {wanted_text}")
    if problems:
        raise BadInput("\n".join(f"{lock.path}: {problem}; make it again: nox -s lock" for problem in problems))


def write(path: Path, *, stack: str, device: str, requirements: list[str], pins: list[Pin]) -> None:
    """Write a lock whose header names the command that makes it, what it was resolved from, and its own digest."""
    made = f"# Made by: nox -s lock -- --device {device} --stack {stack}\n"
    rest = f"{_HEADER}{' '.join(requirements)}\n{text(pins)}"
    write_text(path, f"{made}{_DIGEST}{_sha256(made + rest)}\n{rest}")


def text(pins: Collection[Pin], *, without: Collection[str] = ()) -> str:
    """The pins as pip's requirements with hashes, sorted by name; `without` names some to leave out."""
    lines = []
    for pin in sorted(pins, key=lambda pin: pin.name):
        hashes = " \\\n    ".join(f"--hash=sha256:{digest}" for digest in sorted(pin.hashes))
        if pin.name not in without:
            lines.append(f"{pin.name}=={pin.version} \\\n    {hashes}\n")
    return "".join(lines)


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines joined at their backslashes, each with the number of its first."""
    logical, start, pending = [], 1, ""
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if pending else number
        pending += line.removesuffix("\\")
        if not line.endswith("\\"):
            logical.append((start, pending.strip()))
            pending = ""
    return [*logical, (start, pending.strip())] if pending else logical
