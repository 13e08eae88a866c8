"""Resolving locks: pip, inside the stack's own base, says which files it would install; their hashes are the lock."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from harness import base, venv
from harness.errors import BitmatrixError, Unavailable
from harness.files import read_json, sha256_file, temporary_folder
from harness.image import networked
from harness.lock import Pin
from harness.matrix import DeviceName, Matrix
from harness.pipsite import Site
from harness.plan import IsolationName
from harness.process import logged
from harness.wheelhouse import with_site
from harness.workspace import Workspace


def pins(workspace: Workspace, matrix: Matrix, device: DeviceName, stack: str, isolation: IsolationName) -> list[Pin]:
    """What the stack's requirements resolve to today, on this architecture and its base's Python.

    Raises BitmatrixError with pip's own words when they don't resolve.
    """
    declared = matrix.device(device).stacks[stack]
    log = workspace.stacks / f"{device}-{stack}-lock.log"
    log.unlink(missing_ok=True)
    python = matrix.bases[declared.base].python
    with temporary_folder(workspace.stacks, "resolve") as folder:

        def resolve(settings: Path, site: Site) -> None:
            if isolation == "docker":
                image = base.ensure(declared.base, matrix.bases[declared.base], cache=workspace.cache, log=log).name
                networked(
                    workspace.root / "images" / "resolve.sh",
                    ["/mnt/out/report.json", *declared.requirements],
                    folder,
                    settings,
                    site,
                    image=image,
                    what=f"resolving {stack}",
                    log=log,
                )
            else:
                _on_host(workspace, declared.requirements, folder, settings, site, python=python, log=log)

        with_site(folder, declared.index, resolve)
        report = read_json(folder / "report.json")
    return [_pin(item, log) for item in report["install"]]


def changes(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """What a new lock changes, a line a package, sorted by name."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before != after:
            lines.append(f"{name}: {before or 'absent'} -> {after or 'absent'}")
    return lines


def _pin(item: dict[str, Any], log: Path) -> Pin:
    metadata, download = item["metadata"], item["download_info"]
    digest = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    url = urlsplit(download.get("url", ""))
    if digest is None and url.scheme == "file":
        digest = sha256_file(Path(unquote(url.path)))  # pip reports none for a local file
    if digest is None:
        raise BitmatrixError(f"{metadata['name']}: pip reports no SHA-256 for {url.geturl()}; see {log}")
    return Pin(name=canonicalize_name(metadata["name"]), version=metadata["version"], hashes=(digest,))


def _on_host(
    workspace: Workspace, requirements: list[str], folder: Path, settings: Path, site: Site, *, python: str, log: Path
) -> None:
    if sys.version_info[:2] != tuple(map(int, python.split("."))):
        raise Unavailable(f"without an engine a lock for Python {python} is resolved by that Python; this is another")
    logged(
        ["/bin/sh", str(workspace.root / "images" / "resolve.sh"), str(folder / "report.json"), *requirements],
        log=log,
        what="resolving",
        environment={
            **venv.plain_environment(),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PIP_CONFIG_FILE": str(settings),
            **site.proxies,
        },
    )
