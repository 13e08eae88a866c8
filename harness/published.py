"""Published images: a stack that someone else built, run by the digest of its bytes.

A tag can be moved under its users: `nox -s lock` asks its registry for the digest and records that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from harness import engine
from harness.errors import BadInput, BitmatrixError, Unavailable
from harness.files import write_text

_HEADER = "# tag: "
_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """An image that the engine holds, and the variables that it sets itself."""

    image_id: str
    environment: dict[str, str]


def path_of(locks: Path, *, stack: str, device: str, architecture: str) -> Path:
    """`images/locks/cuda/vllm-x86_64-image.txt`."""
    return locks / device / f"{stack}-{architecture}-image.txt"


def read(path: Path, tag: str, *, device: str, stack: str) -> str:
    """The digest recorded for a tag, as name@sha256:….

    Raises Unavailable when none is recorded, BadInput when it is another tag's or no digest.
    """
    remedy = f"nox -s lock -- --device {device} --stack {stack}"
    if not path.is_file():
        raise Unavailable(
            f"stack {stack}: the digest of {tag} is not recorded ({path.name}); where its registry is reached: {remedy}"
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    if f"{_HEADER}{tag}" not in lines:
        raise BadInput(f"{path}: is not for {tag}; make it again: {remedy}")
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1 or not _DIGEST.fullmatch(found[0]):
        raise BadInput(f"{path}: holds no single name@sha256:<64 hex digits>; make it again: {remedy}")
    return found[0]


def resolve(tag: str) -> str:
    """What the registry says the tag is now, as name@sha256:…. Raises BitmatrixError when it can't be asked."""
    with engine.explained(f"asking the registry for the digest of {tag}"):
        digest = engine.client().images.get_registry_data(tag).id
    return f"{tag.rpartition(':')[0]}@{digest}"


def write(path: Path, tag: str, digest: str, *, device: str, stack: str) -> None:
    """Record a tag's digest."""
    made = f"# Made by: nox -s lock -- --device {device} --stack {stack}"
    write_text(path, f"{made}\n{_HEADER}{tag}\n{digest}\n")


def ensure(name: str, digest: str) -> PublishedImage:
    """The image of a digest, pulled unless the engine has it. Raises BitmatrixError when it can't be had."""
    image = engine.find_image(digest)
    if image is None:
        with engine.explained(f"pulling the image of stack {name} ({digest})"):
            engine.patient().images.pull(digest)
        image = engine.find_image(digest)
    if image is None:
        raise BitmatrixError(f"stack {name}: the engine pulled {digest} but doesn't know it by that digest")
    variables = dict(item.partition("=")[::2] for item in image.attrs["Config"].get("Env") or [])
    return PublishedImage(image_id=image.id, environment=variables)
