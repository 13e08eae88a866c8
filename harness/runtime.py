"""The runtime: a frozen copy of harness/cell and the op's folder, which is what every cell imports.

A cell runs the bytes that were hashed, also when someone edits the checkout meanwhile, and finds only these two on its
path: neither the host half nor the rest of the checkout.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.files import locked, sha256_json, sha256_tree, sources, temporary_folder
from harness.workspace import REPOSITORY


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A staged runtime and the hashes of its two parts."""

    folder: Path
    cell_sha256: str
    op_sha256: str


def stage(out: Path, op_folder: Path) -> Runtime:
    """Copy what a cell imports to out/runtime/<hash>/, unless it is there."""
    cell = REPOSITORY / "harness" / "cell"
    cell_sha256, op_sha256 = hashes(op_folder)
    folder = out / "runtime" / sha256_json({"cell": cell_sha256, "op": op_sha256})[:16]
    with locked(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with temporary_folder(folder.parent, folder.name) as temporary:
                _copy(cell, temporary / "harness" / "cell")
                _copy(op_folder, temporary / "kernels" / op_folder.name)
                (temporary / "harness" / "__init__.py").touch()
                temporary.rename(folder)
    return Runtime(folder=folder, cell_sha256=cell_sha256, op_sha256=op_sha256)


def hashes(op_folder: Path) -> tuple[str, str]:
    """The hashes of harness/cell and of the op's folder as they are now."""
    cell = REPOSITORY / "harness" / "cell"
    return sha256_tree(sources(cell), cell), sha256_tree(sources(op_folder), op_folder)


def _copy(source: Path, target: Path) -> None:
    for path in sources(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
