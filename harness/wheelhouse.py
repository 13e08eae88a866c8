"""Wheelhouses: the files of one lock, fetched once with the network and checked by hash at every use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import pipsite
from harness.errors import BitmatrixError
from harness.files import locked, temporary_folder, write_text
from harness.lock import Lock

Fetch = Callable[[Path, Path, Path, pipsite.Site], None]
"""Fetch a lock (first path) into a folder (second) by a pip configuration file (third) and the site's proxies."""


def ensure(lock: Lock, *, python: str, index: str | None, cache: Path, fetch: Fetch) -> Path:
    """The folder with the lock's files, fetched unless the cache has it.

    The site's own indexes are asked first, and `index` beside them only when they lack something.
    Raises BitmatrixError with the fetch's reason.
    """
    folder = cache / "wheelhouses" / f"{lock.sha256[:16]}-py{python}"
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with temporary_folder(folder.parent, folder.name) as temporary:
                with_site(temporary, index, partial(fetch, lock.path, temporary))
                temporary.rename(folder)
    return folder


def forget(lock: Lock, *, python: str, cache: Path) -> None:
    """Drop a wheelhouse that turned out damaged, so that the next run fetches it again."""
    shutil.rmtree(cache / "wheelhouses" / f"{lock.sha256[:16]}-py{python}", ignore_errors=True)


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
            write_text(settings, site.configuration(index), mode=0o600)
            action(settings, site)
