"""The tensor files of captures, read strictly: what wrote them is untrusted.

The safetensors format: eight bytes with the little-endian length of a JSON header, the header, then the tensors' bytes,
which must cover the rest of the file without a gap. Only the header is parsed; a tensor's bytes are streamed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import BitmatrixError

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
}
"""Bytes of one element, by the format's dtype names."""

_HEADER_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
_MAX_DIMENSIONS = 16
_NAME_LETTERS = 200


@dataclass(frozen=True, kw_only=True)
class TensorRef:
    """Where a tensor's bytes lie: `nbytes` from the absolute `offset` of the file at `path`."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorRef]:
    """The tensors of a file by name, in the order of their bytes.

    Raises BitmatrixError with the file and what is wrong: not a regular file, cut short, a header that is too large or
    not the format's, tensors that overlap or leave a gap.
    """
    with opened(path) as stream:
        return _header(path, stream)


def sha256(ref: TensorRef) -> str:
    """The SHA-256 of a tensor's bytes, as hex. Raises BitmatrixError as `blocks` does."""
    digest = hashlib.sha256()
    for block in blocks(ref, bytearray(_BLOCK_BYTES)):
        digest.update(block)
    return digest.hexdigest()


def blocks(ref: TensorRef, buffer: bytearray) -> Iterator[memoryview]:
    """A tensor's bytes in order, each time in `buffer`; all but the last fill it.

    Raises BitmatrixError when the file can't be opened or became shorter than its header says.
    """
    view, left = memoryview(buffer), ref.nbytes
    with opened(ref.path) as stream:
        stream.seek(ref.offset)
        while left:
            part = view[: min(left, len(buffer))]
            if stream.readinto(part) != len(part):
                raise BitmatrixError(f"{ref.path}: ended inside {ref.name}; it was cut while it was read")
            left -= len(part)
            yield part


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, opened for reading; never through a symbolic link, and never one that blocks (a pipe)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        what = "is a symbolic link" if path.is_symlink() else f"can't be read ({error.strerror})"
        raise BitmatrixError(f"{path}: {what}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BitmatrixError(f"{path}: is no regular file")
    # Its readinto goes on after a short read, and straight into the caller's memory where that is larger than its own.
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _header(path: Path, stream: BufferedReader) -> dict[str, TensorRef]:
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or length > size - 8:
        raise BitmatrixError(f"{path}: cut short: {size} bytes can't hold a header of {length}")
    if length > _HEADER_BYTES:
        raise BitmatrixError(f"{path}: a header of {length} bytes is refused (at most {_HEADER_BYTES})")
    header = _json(path, stream.read(length))
    _check_metadata(path, header.pop("__metadata__", {}))
    refs = [_ref(path, name, entry, 8 + length) for name, entry in header.items()]
    refs.sort(key=lambda ref: (ref.offset, ref.nbytes))
    end = 8 + length
    for ref in refs:
        if ref.offset != end:
            raise BitmatrixError(f"{path}: {ref.name} starts at byte {ref.offset}, where {end} is next: overlap or gap")
        end += ref.nbytes
    if end != size:
        raise BitmatrixError(f"{path}: has {size} bytes, its header speaks of {end}: cut short or added to")
    return {ref.name: ref for ref in refs}


def _json(path: Path, content: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    def no_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    # The format wants the brace first and allows blanks at the end alone.
    if not content.startswith(b"{"):
        raise BitmatrixError(f"{path}: its header is no JSON object: it must start with a brace")
    try:
        header: dict[str, Any] = json.loads(
            content.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant
        )
    except (ValueError, RecursionError) as error:
        raise BitmatrixError(f"{path}: its header isn't valid JSON ({error})") from error
    return header


def _check_metadata(path: Path, metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BitmatrixError(f"{path}: '__metadata__' must map text to text")


def _ref(path: Path, name: str, entry: Any, base: int) -> TensorRef:
    where = f"{path}: {name[:_NAME_LETTERS]!r}"
    if not name.isprintable() or not 0 < len(name) <= _NAME_LETTERS:
        raise BitmatrixError(f"{where}: a tensor's name must be plain text of 1 to {_NAME_LETTERS} letters")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BitmatrixError(f"{where}: must have dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        shown = repr(dtype[:40]) if isinstance(dtype, str) else "that is no text"
        raise BitmatrixError(f"{where}: unknown dtype {shown}")
    if not _whole(shape) or len(shape) > _MAX_DIMENSIONS:
        raise BitmatrixError(f"{where}: its shape must be a list of at most {_MAX_DIMENSIONS} whole numbers")
    if not _whole(offsets) or len(offsets) != 2:
        raise BitmatrixError(f"{where}: data_offsets must be two whole numbers")
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise BitmatrixError(
            f"{where}: {dtype} {shape} takes {nbytes} bytes, data_offsets give {offsets[1] - offsets[0]}"
        )
    return TensorRef(path=path, name=name, dtype=dtype, shape=tuple(shape), offset=base + offsets[0], nbytes=nbytes)


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)
