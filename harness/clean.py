"""Cleaning: old runs, captures and caches that no kept run needs, and what earlier processes left."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import engine, rundir
from harness.errors import BadInput, BitmatrixError
from harness.workspace import Workspace


def clean(workspace: Workspace, *, keep: int, images: bool, everything: bool) -> list[str]:
    """Remove what isn't needed below out/; returns a line for each thing removed.

    Captures that a kept run holds stay, so that the next run needn't make them again.
    """
    removed = _images() if images else []
    if not workspace.out.is_dir():
        return removed
    if everything:
        _refuse_foreign(workspace.out)
        shutil.rmtree(workspace.out)
        return [*removed, f"{workspace.out}"]
    runs = sorted((path.parent for path in workspace.out.glob("*/run.json")), key=lambda path: path.name)
    kept = runs[len(runs) - keep :] if keep > 0 else []
    # Runs are named by the clock, which may have run backwards: the newest is the one that `latest` names.
    newest = (workspace.out / "latest").resolve()
    if keep > 0 and newest in [folder.resolve() for folder in runs if folder not in kept]:
        kept = [*kept[1:], workspace.out / newest.name]
    searches = sorted(path.parent for path in workspace.out.glob("bisect/*/bisect.json"))
    kept_searches = searches[len(searches) - keep :] if keep > 0 else []
    tried = [path.parent for search in kept_searches for path in search.glob("*/run.json")]
    keys = {cell.key for folder in (*kept, *tried) for cell in _cells(folder)}
    doomed = [folder for folder in (*runs, *searches) if folder not in (*kept, *kept_searches)]
    for store in (workspace.cells, workspace.attempts):
        doomed += [path for path in store.glob("[!.]*") if path.name not in keys]
    doomed += [path for path in workspace.out.rglob(".*.tmp") if path.is_dir()]
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    latest = workspace.out / "latest"
    if latest.is_symlink() and not latest.exists():
        latest.unlink()
    return removed + [str(path) for path in doomed]


def _cells(folder: Path) -> list[rundir.RunCell]:
    try:
        return rundir.read(folder).cells
    except BitmatrixError:
        return []


def _refuse_foreign(out: Path) -> None:
    """`--out /` must not empty a disk: only a folder that holds what this program writes is removed whole."""
    known = ("cells", "attempts", "stacks", "inputs", "kernels", "runtime")
    if not any((out / name).is_dir() for name in known):
        raise BadInput(f"{out}: holds nothing that bitmatrix wrote; nothing was removed")


def _images() -> list[str]:
    removed = engine.sweep()
    client = engine.client()
    with engine.explained("removing images"):
        for image in client.images.list(filters={"label": engine.LABEL}):
            client.images.remove(str(image.id), force=True)
            removed.append(", ".join(image.tags) or str(image.id))
    return removed
