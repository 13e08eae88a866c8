"""Wheelhouses: the files of one lock, fetched once with the network and checked by hash at every use."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import pipsite, sdist
from harness.errors import BitmatrixError
from harness.files import locked, sha256_json, temporary_folder, write_text
from harness.lock import Lock, text

_LACKING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")

Fetch = Callable[[Path, Path, Path, pipsite.Site], None]
"""Fetch a lock (first path) into a folder (second) by a pip configuration file (third) and the site's proxies."""


def ensure(
    lock: Lock, *, python: str, index: str | None, cache: Path, fetch: Fetch, from_source: tuple[str, ...] = ()
) -> Path:
    """The folder with the lock's files, fetched unless the cache has it: wheels, and archives `from_source`.

    The site's own indexes are asked first, and `index` beside them only when they lack something.
    Raises BitmatrixError with the fetch's reason, Unavailable when a package can't be built anywhere without a network.
    """
    key = sha256_json([lock.sha256, *from_source]) if from_source else lock.sha256
    # Not with_suffix: the name holds the dot of a version.
    folder = cache / "wheelhouses" / f"{key[:16]}-py{python}"
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            with temporary_folder(folder.parent, folder.name) as temporary:
                # Archives first: they are few and small, and one that is a stub ends it.
                for name in from_source:
                    sdist.fetch(lock.pins[name], temporary, pipsite.find(), index)
                _wheels(lock, temporary, index, fetch, from_source)
                temporary.rename(folder)
    return folder


def _wheels(lock: Lock, folder: Path, index: str | None, fetch: Fetch, from_source: tuple[str, ...]) -> None:
    with temporary_folder(folder.parent, "lock") as place:
        path = lock.path
        if from_source:
            path = place / "lock.txt"
            write_text(path, text(lock.pins.values(), without=from_source))
        try:
            with_site(folder, index, partial(fetch, path, folder))
        except BitmatrixError as error:
            lacking = _LACKING.search(str(error))
            if lacking is None:
                raise
            raise BitmatrixError(
                f"{error}; no index that this site reaches has a wheel of {lacking[1]} for this Python and platform: "
                "add one that has it as the stack's `index`, or, where there is a source archive, name it in "
                "`build.from_source`"
            ) from error


def forget(folder: Path) -> None:
    """Drop a wheelhouse that turned out damaged, so that the next run fetches it again."""
    shutil.rmtree(folder, ignore_errors=True)


def with_site(folder: Path, index: str | None, action: Callable[[Path, pipsite.Site], None]) -> None:
    """Call `action` with a pip configuration of this site; once more with `index` beside it when that fails."""
    site = pipsite.find()
    with temporary_folder(folder.parent, "pip") as place:
        # An index address may hold a password.
        settings = place / "pip.conf"
        write_text(settings, site.configuration(), mode=0o600)
        try:
            action(settings, site)
        except BitmatrixError:
            if index is None:
                raise
            more = site.beside(index)
            write_text(settings, more.configuration(), mode=0o600)
            action(settings, more)
