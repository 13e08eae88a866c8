"""Images: one a stack, made from its lock in two steps.

Fetch runs in the base with the network and fills a wheelhouse; install runs in the base without one, from the
wheelhouse alone, and is committed. A site's certificates and settings are only ever mounted into the first.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docker import types
from docker.models.containers import Container

from harness import base as bases
from harness import build, engine, source, wheelhouse
from harness.base import BaseImage
from harness.build import Builds, Built, Job
from harness.engine import EngineError, Mount, Request
from harness.errors import BitmatrixError
from harness.files import locked, read_json, sha256_file, sha256_json, temporary_folder, write_json, write_text
from harness.lock import Lock, text
from harness.matrix import Base
from harness.pipsite import Site
from harness.process import reason_in
from harness.source import Tree

PYTHON = "/opt/stack/bin/python"
"""The stack's interpreter in every image made here."""

_TARGET = "/opt/stack"
_SECONDS = 3600
_BUILD_SECONDS = 6 * 3600
_LOCK = f"{engine.LABEL}.lock"
_MADE = f"{engine.LABEL}.made-from-source"


@dataclass(frozen=True, kw_only=True)
class StackImage:
    """A stack's image in the engine. `environment` holds the variables that the image itself sets."""

    name: str
    image_id: str
    base: str
    environment: dict[str, str]
    made_from_source: dict[str, Any]
    """What was built or taken from source: `wheels`, `nvcc` and `sources`; empty when nothing was."""
    lock: str | None
    """The digest of the lock that its label names."""
    as_made: bool | None
    """Whether it is the image that was made under this name; None when none was made with this cache."""


def ensure(
    name: str,
    lock: Lock,
    builds: Builds,
    *,
    base_name: str,
    base: Base,
    index: str | None,
    recipe: Path,
    cache: Path,
    log: Path,
) -> StackImage:
    """The image of a stack, made unless the engine has it. Its tag is a hash of recipe, lock, builds and base.

    Raises BitmatrixError with the failed step's own words.
    """
    from_base = bases.ensure(base_name, base, cache=cache, log=log)
    identity = {
        "install": sha256_file(recipe / "install.sh"),
        "lock": lock.sha256,
        "builds": builds.identity(recipe),
        "base": from_base.identity,
        "architecture": platform.machine(),
    }
    tag = f"bitmatrix/{name}:{sha256_json(identity)[:16]}"
    with locked(cache / "locks" / tag.replace("/", "_")):
        found = engine.find_image(tag)
        if found is None:
            log.unlink(missing_ok=True)
            _make(tag, lock, builds, from_base, base, index=index, recipe=recipe, cache=cache, log=log)
            found = engine.find_image(tag)
            assert found is not None
            remember(tag, found.id, cache=cache)
    variables = dict(item.partition("=")[::2] for item in found.attrs["Config"].get("Env") or [])
    return StackImage(
        name=tag,
        image_id=found.id,
        base=from_base.identity,
        environment=variables,
        made_from_source=json.loads(found.labels.get(_MADE, "{}")),
        lock=found.labels.get(_LOCK),
        as_made=_as_made(tag, found.id, cache=cache),
    )


def remember(tag: str, image_id: str, *, cache: Path) -> None:
    """Keep which image was made under a name: a name can be given to another."""
    write_json(_made_record(cache, tag), {"tag": tag, "image_id": image_id})


def _as_made(tag: str, image_id: str, *, cache: Path) -> bool | None:
    path = _made_record(cache, tag)
    return read_json(path).get("image_id") == image_id if path.is_file() else None


def _made_record(cache: Path, tag: str) -> Path:
    return cache / "images" / f"{tag.replace('/', '_')}.json"


def _make(
    tag: str,
    lock: Lock,
    builds: Builds,
    from_base: BaseImage,
    base: Base,
    *,
    index: str | None,
    recipe: Path,
    cache: Path,
    log: Path,
) -> None:
    """With the network: sources and wheelhouses. Without it: builds, then the installation."""
    trees = [source.ensure(declared, cache=cache, log=log) for declared in builds.sources]
    fetching = partial(fetch, recipe=recipe, image=from_base.name, log=log)
    fetched = partial(wheelhouse.ensure, python=base.python, index=index, cache=cache, fetch=fetching)
    wheels = fetched(lock, from_source=builds.from_source)
    built = None
    if builds.from_source or builds.built:
        assert builds.lock is not None
        built = build.ensure(
            builds,
            lock,
            trees,
            wheels=wheels,
            build_wheels=fetched(builds.lock),
            base=from_base.identity,
            cache=cache,
            recipe=recipe,
            run=partial(_build, recipe=recipe, image=from_base.name, log=log),
        )
    try:
        _install(tag, lock, builds, wheels, built, trees, recipe=recipe, image=from_base.name, log=log)
    except EngineError:
        raise  # the engine's fault, not the wheels'
    except BitmatrixError:
        wheelhouse.forget(wheels)
        raise


def networked(
    script: Path,
    arguments: list[str],
    folder: Path,
    settings: Path,
    site: Site,
    *,
    image: str,
    what: str,
    log: Path,
    mounts: tuple[Mount, ...] = (),
) -> None:
    """Run a script of images/ in a base with the network and the site's pip settings; it may write `/mnt/out`."""
    request = Request(
        image=image,
        purpose=script.stem,
        command=["/bin/sh", "/mnt/script.sh", *arguments],
        mounts=(
            Mount(script, "/mnt/script.sh"),
            Mount(settings, "/mnt/pip.conf"),
            Mount(folder, "/mnt/out", writable=True),
            *mounts,
            *(Mount(path, str(path)) for path in site.paths),
        ),
        environment={"PIP_CONFIG_FILE": "/mnt/pip.conf", "HOME": "/tmp", **site.proxies},  # noqa: S108
        options={
            # The host's network, because a site's proxy may listen on the host alone.
            "network_mode": "host",
            **engine.as_caller(),
        },
    )
    with engine.container(request) as made:
        _finish(made, what, log)


def fetch(lock: Path, folder: Path, settings: Path, site: Site, *, recipe: Path, image: str, log: Path) -> None:
    """Fill `folder` with the lock's files, in a container of the base `image`, through the site's own indexes."""
    networked(
        recipe / "fetch.sh",
        ["/mnt/lock.txt", "/mnt/out"],
        folder,
        settings,
        site,
        image=image,
        what="fetching the lock's packages",
        log=log,
        mounts=(Mount(lock, "/mnt/lock.txt"),),
    )


def build_request(job: Job, *, recipe: Path, image: str) -> Request:
    """What is asked of the engine for a build: no network, one writable folder, the GPU where a source wants it."""
    inside = [f"/mnt/sources/{number}/{path.name}" for number, path in enumerate(job.sources)]
    places = ["/mnt/lock.txt", "/mnt/wheels", "/mnt/build-lock.txt", "/mnt/build-wheels"]
    given = [job.lock, job.wheels, job.build_lock, job.build_wheels]
    return Request(
        image=image,
        purpose="build",
        command=["/bin/sh", "/mnt/build.sh", "python3", *places, "/tmp/build", "/mnt/out", *inside],  # noqa: S108
        mounts=(
            Mount(recipe / "build.sh", "/mnt/build.sh"),
            *(Mount(path, place) for path, place in zip(given, places, strict=True)),
            *(Mount(path, place) for path, place in zip(job.sources, inside, strict=True)),
            Mount(job.out, "/mnt/out", writable=True),
        ),
        environment={"HOME": "/tmp", **job.environment},  # noqa: S108
        options={"network_mode": "none", **engine.as_caller(), **_gpu(wanted=job.gpu)},
    )


def _build(job: Job, *, recipe: Path, image: str, log: Path) -> None:
    with engine.container(build_request(job, recipe=recipe, image=image)) as made:
        _finish(made, "building from source", log, seconds=_BUILD_SECONDS)


def _gpu(*, wanted: bool) -> dict[str, Any]:
    return {"device_requests": [types.DeviceRequest(count=1, capabilities=[["gpu"]])]} if wanted else {}


def install_request(
    lock: Path, builds: Builds, wheels: Path, built: Path, trees: list[Tree], *, recipe: Path, image: str
) -> Request:
    """What is asked of the engine for an installation: no network, everything that it reads mounted read-only."""
    return Request(
        image=image,
        purpose="install",
        command=[
            *["/bin/sh", "/mnt/install.sh", "/mnt/lock.txt", "/mnt/wheelhouse", _TARGET, "/mnt/built", "/mnt/trees"],
            *builds.modules,
        ],
        mounts=(
            Mount(recipe / "install.sh", "/mnt/install.sh"),
            Mount(lock, "/mnt/lock.txt"),
            Mount(wheels, "/mnt/wheelhouse"),
            Mount(built, "/mnt/built"),
            *(Mount(tree.path, f"/mnt/trees/{tree.name}") for tree in trees),
        ),
        options={
            "network_mode": "none",
            # What is mounted needs places; on a tmpfs they leave nothing in the layer.
            "tmpfs": {"/mnt": "", "/tmp": ""},  # noqa: S108
            **engine.confined(),
            **_gpu(wanted=any(declared.gpu for declared in builds.built)),
        },
    )


def _install(
    tag: str,
    lock: Lock,
    builds: Builds,
    wheels: Path,
    built: Built | None,
    trees: list[Tree],
    *,
    recipe: Path,
    image: str,
    log: Path,
) -> None:
    kinds = {declared.name: declared.kind for declared in builds.sources}
    on_path = [tree for tree in trees if kinds[tree.name] == "tree"]
    with temporary_folder(wheels.parent, "install") as place:
        write_text(place / "lock.txt", text(lock.pins.values(), without=builds.from_source))
        (place / "nothing").mkdir()
        folder = built.folder if built else place / "nothing"
        request = install_request(place / "lock.txt", builds, wheels, folder, on_path, recipe=recipe, image=image)
        with engine.container(request) as made:
            _finish(made, "installing from the wheelhouse", log)
            changes = [
                f"LABEL {engine.LABEL}=stack",
                f"LABEL {_LOCK}={lock.sha256}",
                f'CMD ["{PYTHON}"]',
            ]
            if builds.identity(recipe):
                # Twice: as the label's text, and quoted as a Dockerfile wants it.
                words = json.dumps(json.dumps(build.record(built, trees))).replace("$", "\\$")
                changes.append(f"LABEL {_MADE}={words}")
            engine.commit(made, tag, changes)


def _finish(made: Container, what: str, log: Path, *, seconds: float = _SECONDS) -> None:
    ending = engine.run(made, log=log, seconds=seconds)
    if ending.exit_code is None:
        raise BitmatrixError(f"{what} took more than {seconds:.0f} s and was stopped; the whole log: {log}")
    if ending.exit_code:
        raise BitmatrixError(f"{what} failed: {reason_in(log)}; the whole log: {log}")
