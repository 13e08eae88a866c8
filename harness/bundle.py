"""Bundles: all that a run needs in one file, for a host without a network.

A bundle is a tar whose first member, bundle.json, lists every other with its size and SHA-256: the stacks' images and
the bases below them, the wheelhouses, the inputs, the compiled kernels, the wheels of the harness, and the checkout.
Nothing of it is used before its digest holds, and nothing that isn't listed is unpacked.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from packaging.requirements import Requirement
from pydantic import BaseModel, ConfigDict, ValidationError

from harness import base as bases
from harness import engine, image, lock, rundir, runtime, wheelhouse
from harness import environment as environments
from harness.environment import Environment
from harness.errors import BadInput, BitmatrixError
from harness.files import locked, read_json, sha256_file, sha256_json, sources, temporary_folder, write_json
from harness.matrix import DeviceName, Matrix
from harness.process import logged
from harness.workspace import REPOSITORY, Workspace

_BLOCK = 1 << 20
_LISTING = "bundle.json"
_LISTING_BYTES = 64 << 20
_CHECKOUT = "checkout.gitbundle"
_REMEDY = "copy or make the bundle again: nox -s bundle"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Member(_Closed):
    """One file of a bundle."""

    bytes: int
    sha256: str


class BundledImage(_Closed):
    """An image under its name. `layers` tell it where an engine gives the same image another id."""

    file: str
    image_id: str
    layers: list[str]


class Listing(_Closed):
    """bundle.json."""

    format: Literal[1] = 1
    created: str
    commit: str | None
    architecture: str
    device: Literal["cpu", "cuda"]
    stacks: list[str]
    code: dict[str, str]
    """What the bundle fits: digests of harness/cell, the op, matrix.yaml and the stacks' locks."""
    images: dict[str, BundledImage]
    files: dict[str, Member]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file on its way into a bundle."""

    name: str
    path: Path


# Packing -------------------------------------------------------------------------------------------------------------


def pack(
    target: Path,
    workspace: Workspace,
    matrix: Matrix,
    device: DeviceName,
    stacks: dict[str, Environment],
    *,
    inputs: Path,
    dirty: bool,
    say: Callable[[str], None],
) -> Listing:
    """Write the bundle of these stacks to `target`; it appears whole or not at all.

    Raises BadInput when the checkout differs from its commit and `dirty` doesn't allow it, BitmatrixError with the
    words of what failed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(target.parent, "bundle") as work:
        parts = [*_checkout(work, dirty=dirty), *_harness_wheels(work)]
        parts += [*_folder(inputs, f"out/inputs/{inputs.name}"), *_kernels(workspace, matrix)]
        for name in stacks:
            parts += _wheels(workspace, matrix, device, name)
        images = {}
        for number, tag in enumerate(_tags(workspace, matrix, device, stacks)):
            say(f"saving {tag}")
            images[tag] = _save(tag, work, f"images/{number}.tar")
            parts.append(Part(name=f"images/{number}.tar", path=work / f"images/{number}.tar"))
        listing = Listing(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=rundir.commit(),
            architecture=platform.machine(),
            device=device,
            stacks=list(stacks),
            code=code(workspace, matrix, device, list(stacks)),
            images=images,
            files={part.name: Member(bytes=part.path.stat().st_size, sha256=sha256_file(part.path)) for part in parts},
        )
        say(f"writing {target}")
        _write(work / "whole.tar", listing, parts)
        (work / "whole.tar").rename(target)
    return listing


def code(workspace: Workspace, matrix: Matrix, device: DeviceName, stacks: list[str]) -> dict[str, str]:
    """What a bundle must fit: digest by part of the checkout."""
    cell, op = runtime.hashes(workspace.kernels / matrix.op)
    locks = [environments.lock_of(workspace, matrix, device, name) for name in stacks]
    return {
        "matrix.yaml": sha256_json(matrix.model_dump()),
        "harness/cell": cell,
        f"kernels/{matrix.op}": op,
        **{environments.relative(path, workspace): lock.read(path).sha256 for path in locks if path.is_file()},
    }


def _checkout(work: Path, *, dirty: bool) -> Iterator[Part]:
    """The commit as git packs it; of a changed tree, with leave, its files."""
    if not rundir.changed():
        path = work / _CHECKOUT
        command = ["git", "-C", str(REPOSITORY), "bundle", "create", str(path), "HEAD"]
        logged(command, log=work / "git.log", what="packing the checkout")
        yield Part(name=_CHECKOUT, path=path)
    elif dirty:
        for path in sources(REPOSITORY / "harness"):
            yield Part(name=f"checkout/{path.relative_to(REPOSITORY).as_posix()}", path=path)
    else:
        raise BadInput("the checkout differs from its commit, which is what a bundle holds: commit, or add --dirty")


def _harness_wheels(work: Path) -> Iterator[Part]:
    """What `pip install -e '.[nox]'` installs, and what it builds with."""
    needed = [Requirement(text) for text in importlib.metadata.requires("bitmatrix") or []]
    wanted = [
        str(one).partition(";")[0].strip() for one in needed if not one.marker or one.marker.evaluate({"extra": "nox"})
    ]
    constraints = ["--constraint", str(REPOSITORY / "constraints.txt")]
    wheels = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(wheels)]
    logged(
        [*command, *constraints, *wanted, "setuptools>=77"],
        log=work / "pip.log",
        what="fetching the harness' own wheels",
    )
    yield from _folder(wheels, "wheels")


def _folder(folder: Path, name: str) -> Iterator[Part]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield Part(name=f"{name}/{path.relative_to(folder).as_posix()}", path=path)


def _kernels(workspace: Workspace, matrix: Matrix) -> Iterator[Part]:
    for folder in (workspace.out / "kernels").glob(f"{matrix.op}-*"):
        if (folder / "build.json").is_file():
            yield from _folder(folder, f"out/kernels/{folder.name}")


def _wheels(workspace: Workspace, matrix: Matrix, device: DeviceName, name: str) -> Iterator[Part]:
    stack = matrix.device(device).stacks[name]
    path = environments.lock_of(workspace, matrix, device, name)
    if stack.base is None or not path.is_file():
        return
    base, log = matrix.bases[stack.base], workspace.stacks / f"{device}-{name}-bundle.log"
    made = bases.ensure(stack.base, base, cache=workspace.cache, log=log)
    fetch = partial(image.fetch, recipe=workspace.root / "images", image=made.name, log=log)
    from_source = tuple(stack.build.from_source) if stack.build else ()
    folder = wheelhouse.ensure(
        lock.read(path),
        python=base.python,
        index=stack.index,
        cache=workspace.cache,
        fetch=fetch,
        from_source=from_source,
    )
    yield from _folder(folder, f"cache/wheelhouses/{folder.name}")


def _tags(workspace: Workspace, matrix: Matrix, device: DeviceName, stacks: dict[str, Environment]) -> list[str]:
    """The images by name: each base once, then those of the stacks."""
    tags: dict[str, None] = {}
    for name in stacks:
        base = matrix.device(device).stacks[name].base
        if base:
            log = workspace.stacks / f"{device}-{name}-bundle.log"
            tags[bases.ensure(base, matrix.bases[base], cache=workspace.cache, log=log).name] = None
    return [*tags, *(str(environment.image) for environment in stacks.values())]


def _save(tag: str, work: Path, name: str) -> BundledImage:
    found = engine.find_image(tag)
    if found is None:
        raise BitmatrixError(f"the engine has no image {tag} any more; make it again: nox -s matrix")
    path = work / name
    path.parent.mkdir(exist_ok=True)
    with engine.explained(f"saving {tag}"), path.open("xb") as stream:
        for block in engine.patient().images.get(tag).save(chunk_size=_BLOCK, named=tag):
            stream.write(block)
    return BundledImage(file=name, image_id=str(found.id), layers=_layers(found))


def _layers(found: Any) -> list[str]:
    return list(found.attrs["RootFS"].get("Layers") or [])


def _write(path: Path, listing: Listing, parts: list[Part]) -> None:
    text = json.dumps(listing.model_dump(), indent=1).encode()
    with tarfile.open(path, "x:", format=tarfile.PAX_FORMAT) as tar:
        head = tarfile.TarInfo(_LISTING)
        head.size = len(text)
        tar.addfile(head, BytesIO(text))
        for part in parts:
            entry = tarfile.TarInfo(part.name)
            entry.size, entry.mode = part.path.stat().st_size, 0o644
            with part.path.open("rb") as stream:
                tar.addfile(entry, stream)


# Unpacking -----------------------------------------------------------------------------------------------------------


def use(file: Path, workspace: Workspace, matrix: Matrix, device: DeviceName, say: Callable[[str], None]) -> Listing:
    """Put what a bundle holds where a run looks for it: images into the engine, the rest into out/ and the cache.

    A bundle that was put there whole isn't read again, unless the engine lost an image. Raises BadInput when it is cut
    short, altered, of another format, or doesn't fit this checkout and host; then nothing of it is used.
    """
    listing, digest = _listing(file)
    _fits(file, listing, workspace, matrix, device)
    marker = workspace.cache / "bundles" / f"{digest[:16]}.json"
    with locked(marker.with_suffix(".lock")):
        seen = {"bytes": file.stat().st_size, "modified_ns": file.stat().st_mtime_ns, "out": str(workspace.out)}
        if marker.is_file() and read_json(marker) == seen and all(_there(*one) for one in listing.images.items()):
            return listing
        say(f"unpacking {file}: listing sha256 {digest}, commit {listing.commit or 'unknown'}")
        with temporary_folder(workspace.cache / "bundles", "unpacked") as folder:
            _unpack(file, listing, folder)
            for tag, bundled in listing.images.items():
                say(f"loading {tag}")
                _load(file, tag, bundled, folder, workspace)
            for place, target in (("cache/wheelhouses", workspace.cache / "wheelhouses"), ("out", workspace.out)):
                _place(folder / place, target)
        write_json(marker, seen)
    return listing


def _listing(file: Path) -> tuple[Listing, str]:
    try:
        with tarfile.open(file, "r:") as tar:
            head = tar.next()
            if head is None or head.name != _LISTING or not head.isfile() or head.size > _LISTING_BYTES:
                raise BadInput(f"{file}: is no bundle: it doesn't start with {_LISTING}; {_REMEDY}")
            stream = tar.extractfile(head)
            text = stream.read() if stream else b""
        return Listing.model_validate_json(text), hashlib.sha256(text).hexdigest()
    except OSError as error:
        raise BadInput(f"{file}: can't be read ({error.strerror or error})") from error
    except (tarfile.TarError, EOFError) as error:
        raise BadInput(f"{file}: is no bundle, or cut short ({error}); {_REMEDY}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "document"
        raise BadInput(f"{file}: {_LISTING}: {place}: {first['msg']}; {_REMEDY}") from error


def _fits(file: Path, listing: Listing, workspace: Workspace, matrix: Matrix, device: DeviceName) -> None:
    if (listing.architecture, listing.device) != (platform.machine(), device):
        made, here = f"{listing.device} on {listing.architecture}", f"{device} on {platform.machine()}"
        raise BadInput(f"{file}: is for {made}, this is {here}")
    known = [name for name in listing.stacks if name in matrix.device(device).stacks]
    now = code(workspace, matrix, device, known)
    other = [name for name in dict.fromkeys([*listing.code, *now]) if listing.code.get(name) != now.get(name)]
    if other or known != listing.stacks:
        remedy = (
            f"git clone {_CHECKOUT} of the bundle" if _CHECKOUT in listing.files else f"git checkout {listing.commit}"
        )
        raise BadInput(f"{file}: doesn't fit this checkout, which has other {', '.join(other)}; use its own: {remedy}")


def _unpack(file: Path, listing: Listing, folder: Path) -> None:
    """Every listed file into `folder`, its digest checked. Raises BadInput at the first that isn't as listed."""
    left = dict(listing.files)
    try:
        with tarfile.open(file, "r:") as tar:
            for entry in tar:
                if entry.name == _LISTING:
                    continue
                member = left.pop(entry.name, None)
                if member is None or not entry.isfile() or not _plain(entry.name):
                    raise BadInput(f"{file}: {entry.name!r} isn't listed, or no plain file; {_REMEDY}")
                stream = tar.extractfile(entry)
                assert stream is not None
                if entry.size != member.bytes or _copied(stream, folder / entry.name) != member.sha256:
                    raise BadInput(f"{file}: {entry.name} was altered: its digest isn't the listed one; {_REMEDY}")
    except (tarfile.TarError, EOFError) as error:
        raise BadInput(f"{file}: cut short or altered ({error}); {_REMEDY}") from error
    if left:
        raise BadInput(f"{file}: cut short: {', '.join(list(left)[:5])} is missing; {_REMEDY}")


def _plain(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name == path.as_posix()


def _copied(stream: IO[bytes], path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as target:
        while block := stream.read(_BLOCK):
            digest.update(block)
            target.write(block)
    return digest.hexdigest()


def _there(tag: str, bundled: BundledImage) -> bool:
    found = engine.find_image(tag)
    return found is not None and (found.id == bundled.image_id or _layers(found) == bundled.layers)


def _load(file: Path, tag: str, bundled: BundledImage, folder: Path, workspace: Workspace) -> None:
    if not _there(tag, bundled):
        with engine.explained(f"loading {tag}"), (folder / bundled.file).open("rb") as stream:
            engine.patient().images.load(stream)
    found = engine.find_image(tag)
    if found is None or not _there(tag, bundled):
        raise BadInput(f"{file}: {bundled.file} holds another image than {tag} {bundled.image_id}; {_REMEDY}")
    image.remember(tag, str(found.id), cache=workspace.cache)


def _place(source: Path, target: Path) -> None:
    """Move each folder two levels down to its place, unless it is there."""
    depth = 1 if target.name == "wheelhouses" else 2
    for folder in source.glob("/".join(["*"] * depth)):
        place = target / folder.relative_to(source)
        if folder.is_dir() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder, place)
