"""Files written whole or not at all, hashed trees, and locks between processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import BitmatrixError


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to a temporary name beside `path`, flush it to disk and rename it into place."""
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write `content` to a temporary name beside `path`, flush it to disk and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write `data` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file that this program wrote.

    Raises:
        BitmatrixError: it isn't JSON (cut short by a crash of the machine, or edited).
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BitmatrixError(f"{path}: not valid JSON ({error}); remove the file and run again") from error


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder beside its later place, removed at the end unless it was renamed away."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{prefix}-", suffix=".tmp", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` between processes; it ends with the process, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_tree(files: Iterable[Path], root: Path) -> str:
    """One SHA-256 over names relative to `root` and contents, whatever the order the files come in."""
    names = sorted(path.relative_to(root).as_posix() for path in files)
    return sha256_json({name: sha256_file(root / name) for name in names})


def sha256_json(data: Any) -> str:
    """The SHA-256 of data's canonical JSON: sorted keys, no blanks."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sources(folder: Path) -> list[Path]:
    """Every source file below `folder`: what a cache or an editor leaves there doesn't count."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.suffix != ".pyc"
        and not path.name.startswith(".")
    )
