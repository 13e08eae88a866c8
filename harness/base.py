"""Bases: what a stack's image starts from, pulled by digest or made from a distribution's packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness import engine
from harness.errors import BitmatrixError
from harness.files import locked, sha256_json
from harness.matrix import Base, Debootstrap
from harness.process import logged

REPOSITORY = "bitmatrix/base"
_PACKAGES = f"{engine.LABEL}.packages"
_SCRIPTS = Path("/usr/share/debootstrap/scripts")


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A base that the engine holds. `identity` is its digest, or the hash of its recipe and package versions."""

    name: str
    image_id: str
    identity: str


def ensure(name: str, base: Base, *, cache: Path, log: Path) -> BaseImage:
    """Pull or make the base, unless the engine has it. Raises BitmatrixError when it can't be had."""
    if base.image:
        return _pulled(name, base.image)
    assert base.debootstrap is not None
    recipe = {**base.debootstrap.model_dump(), "architecture": platform.machine()}
    tag = f"{REPOSITORY}:{name}-{sha256_json(recipe)[:16]}"
    with locked(cache / "locks" / tag.replace("/", "_")):
        image = engine.find_image(tag)
        if image is None:
            _import(tag, base.debootstrap, cache, log)
            image = engine.find_image(tag)
    assert image is not None
    identity = sha256_json([recipe, image.labels.get(_PACKAGES, "")])
    return BaseImage(name=tag, image_id=image.id, identity=identity)


def _pulled(name: str, digest: str) -> BaseImage:
    image = engine.find_image(digest)
    if image is None:
        with engine.explained(f"pulling the base {name} ({digest})"):
            engine.patient().images.pull(digest)
        image = engine.find_image(digest)
    if image is None:
        raise BitmatrixError(f"base {name}: the engine pulled {digest} but doesn't know it by that digest")
    return BaseImage(name=digest, image_id=image.id, identity=digest)


def _import(tag: str, recipe: Debootstrap, cache: Path, log: Path) -> None:
    with _root_filesystem(recipe, cache, log) as root:
        packages = sha256_json(_package_versions(root))
        excluded = ["./dev/*", "./proc/*", "./sys/*", "./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*"]
        tar = subprocess.Popen(
            ["tar", "--numeric-owner", "-C", str(root), "-c", *(f"--exclude={path}" for path in excluded), "."],
            stdout=subprocess.PIPE,
        )
        assert tar.stdout is not None
        with tar, engine.explained(f"importing the base {tag}"):
            engine.patient().api.import_image_from_stream(
                tar.stdout,
                repository=tag.rpartition(":")[0],
                tag=tag.rpartition(":")[2],
                changes=[f"LABEL {engine.LABEL}=base", f"LABEL {_PACKAGES}={packages}"],
            )
        if tar.returncode:
            raise BitmatrixError(f"base {tag}: tar ended with {tar.returncode} while packing it; see {log}")


@contextmanager
def _root_filesystem(recipe: Debootstrap, cache: Path, log: Path) -> Iterator[Path]:
    if shutil.which("debootstrap") is None:
        raise BitmatrixError("a base is made with debootstrap, which isn't installed: `apt-get install debootstrap`")
    if os.geteuid() != 0:
        raise BitmatrixError(
            f"debootstrap needs root to make a base: run `sudo {sys.executable} -m harness base` once (the engine "
            "keeps the image), give the base by digest in matrix.yaml (`image: name@sha256:...`), or choose "
            "--isolation venv"
        )
    keyring = _keyring(recipe.suite)
    if keyring and not keyring.is_file():
        package = "ubuntu-keyring" if "ubuntu" in keyring.name else "debian-archive-keyring"
        raise BitmatrixError(
            f"the packages of {recipe.suite} can't be checked without {keyring}: `apt-get install {package}`, or give "
            "the base by digest in matrix.yaml (`image: name@sha256:...`)"
        )
    (cache / "bases").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="base-", dir=cache / "bases"))
    try:
        logged(
            [
                "debootstrap",
                "--variant=minbase",
                "--force-check-gpg",
                f"--components={','.join(recipe.components)}",
                f"--include={','.join(recipe.packages)}",
                recipe.suite,
                str(folder / "root"),
                recipe.mirror,
            ],
            log=log,
            what=f"debootstrap {recipe.suite}",
        )
        yield folder / "root"
    finally:
        # An interrupted debootstrap leaves these mounted; removing through a mount would reach the host's own.
        for mounted in ("proc", "sys"):
            subprocess.run(["umount", "--lazy", str(folder / "root" / mounted)], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _keyring(suite: str) -> Path | None:
    """The keyring that debootstrap's own script for the suite names; without it, debootstrap would check nothing.

    Raises BitmatrixError when there is no such script.
    """
    script = _SCRIPTS / suite
    if not script.is_file():
        raise BitmatrixError(
            f"this host's debootstrap doesn't know the suite {suite} ({script} is missing): install a newer one, "
            "or give the base by digest in matrix.yaml (`image: name@sha256:...`)"
        )
    words = script.read_text(encoding="utf-8").split()
    return next((Path(after) for word, after in pairwise(words) if word == "keyring"), None)


def _package_versions(root: Path) -> list[str]:
    """`name=version:architecture` of every installed package, sorted; from dpkg's own database."""
    found, fields = [], dict[str, str]()
    for line in [*(root / "var/lib/dpkg/status").read_text(encoding="utf-8").splitlines(), ""]:
        if line:
            name, colon, value = line.partition(": ")
            if colon and not name.startswith(" "):
                fields[name] = value
        elif fields:
            found.append(f"{fields['Package']}={fields['Version']}:{fields['Architecture']}")
            fields = {}
    return sorted(found)
