"""Images: one a stack, made from its lock in two steps.

Fetch runs in the base with the network and fills a wheelhouse; install runs in the base without one, from the
wheelhouse alone, and is committed. A site's certificates and settings are only ever mounted into the first.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from docker.models.containers import Container

from harness import base as bases
from harness import engine, wheelhouse
from harness.engine import Mount, Request
from harness.errors import BitmatrixError
from harness.files import locked, sha256_file, sha256_json
from harness.lock import Lock
from harness.matrix import Base
from harness.pipsite import Site
from harness.process import reason_in

PYTHON = "/opt/stack/bin/python"
"""The stack's interpreter in every image made here."""

_TARGET = "/opt/stack"
_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class StackImage:
    """A stack's image in the engine. `environment` holds the variables that the image itself sets."""

    name: str
    image_id: str
    base: str
    environment: dict[str, str]


def ensure(
    name: str, lock: Lock, *, base_name: str, base: Base, index: str | None, recipe: Path, cache: Path, log: Path
) -> StackImage:
    """The image of a stack, made unless the engine has it. Its tag is a hash of recipe, lock and base.

    Raises BitmatrixError with the failed step's own words.
    """
    from_base = bases.ensure(base_name, base, cache=cache, log=log)
    identity = {
        "install": sha256_file(recipe / "install.sh"),
        "lock": lock.sha256,
        "base": from_base.identity,
        "architecture": platform.machine(),
    }
    tag = f"bitmatrix/{name}:{sha256_json(identity)[:16]}"
    with locked(cache / "locks" / tag.replace("/", "_")):
        found = engine.find_image(tag)
        if found is None:
            log.unlink(missing_ok=True)
            fetch = partial(_fetch, recipe=recipe, image=from_base.name, log=log)
            wheels = wheelhouse.ensure(lock, python=base.python, index=index, cache=cache, fetch=fetch)
            try:
                _install(tag, lock, wheels, recipe=recipe, image=from_base.name, log=log)
            except BitmatrixError:
                wheelhouse.forget(lock, python=base.python, cache=cache)
                raise
            found = engine.find_image(tag)
    assert found is not None
    variables = dict(item.partition("=")[::2] for item in found.attrs["Config"].get("Env") or [])
    return StackImage(name=tag, image_id=found.id, base=from_base.identity, environment=variables)


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


def _fetch(lock: Path, folder: Path, settings: Path, site: Site, *, recipe: Path, image: str, log: Path) -> None:
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


def _install(tag: str, lock: Lock, wheels: Path, *, recipe: Path, image: str, log: Path) -> None:
    request = Request(
        image=image,
        purpose="install",
        command=["/bin/sh", "/mnt/install.sh", "/mnt/lock.txt", "/mnt/wheelhouse", _TARGET],
        mounts=(
            Mount(recipe / "install.sh", "/mnt/install.sh"),
            Mount(lock.path, "/mnt/lock.txt"),
            Mount(wheels, "/mnt/wheelhouse"),
        ),
        options={
            "network_mode": "none",
            # What is mounted needs places; on a tmpfs they leave nothing in the layer.
            "tmpfs": {"/mnt": "", "/tmp": ""},  # noqa: S108
            **engine.confined(),
        },
    )
    with engine.container(request) as made:
        _finish(made, "installing from the wheelhouse", log)
        with engine.explained(f"committing {tag}"):
            made.commit(
                repository=tag.rpartition(":")[0],
                tag=tag.rpartition(":")[2],
                changes=[
                    f"LABEL {engine.LABEL}=stack",
                    f"LABEL {engine.LABEL}.lock={lock.sha256}",
                    f'CMD ["{PYTHON}"]',
                ],
            )


def _finish(made: Container, what: str, log: Path) -> None:
    ending = engine.run(made, log=log, seconds=_SECONDS)
    if ending.exit_code is None:
        raise BitmatrixError(f"{what} took more than {_SECONDS} s and was stopped; the whole log: {log}")
    if ending.exit_code:
        raise BitmatrixError(f"{what} failed: {reason_in(log)}; the whole log: {log}")
