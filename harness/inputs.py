"""Inputs: the same bytes on every platform by construction.

Philox's raw 64-bit words (NumPy promises that stream), split into 32-bit integers; per value twelve of them are
summed in int64 and centred (Irwin-Hall, near-normal with variance 1), converted to float32 (one correct rounding) and
multiplied by 2**-32 (exact). One float32 multiplication by the input's scale follows. No libm, no framework.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.cell.op import Input, Op
from harness.errors import BadInput
from harness.files import locked, read_json, sha256_json, temporary_folder

_TERMS = 12
_CENTRE = _TERMS // 2 * (2**32 - 1)
_BLOCK = 1 << 20
SCHEME = "philox-irwin-hall-12-v1"


def values(stream: int, count: int, scale: float) -> npt.NDArray[np.float32]:
    """`count` near-normal float32 values of one stream, times `scale`; a longer call starts with the same values."""
    words = np.random.Philox(key=stream)
    result = np.empty(count, dtype="<f4")
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        # Low half first, on every platform: the words are made little-endian before they are split.
        integers = words.random_raw(size * _TERMS // 2).astype("<u8").view("<u4").reshape(size, _TERMS)
        centred = integers.sum(axis=1, dtype=np.int64) - _CENTRE
        result[start : start + size] = centred.astype(np.float32) * np.float32(2.0**-32)
    return result if scale == 1 else result * np.float32(scale)


def digests(folder: Path, op: Op, cases: tuple[int, ...]) -> dict[str, str | dict[str, str]]:
    """The SHA-256 of each input in `folder`: of all its bytes, or of the first T rows for each case T."""
    result: dict[str, str | dict[str, str]] = {}
    for tensor in op.inputs:
        array = np.load(folder / f"{tensor.name}.npy", mmap_mode="r", allow_pickle=False)
        if tensor.has_rows:
            result[tensor.name] = {str(case): _digest(array[:case]) for case in cases}
        else:
            result[tensor.name] = _digest(array)
    return result


def make(out: Path, op: Op, cases: tuple[int, ...]) -> Path:
    """Write the op's inputs for `cases` below `out`, or find them there; returns their folder of .npy files.

    Row tensors hold the largest case's rows; case T is the first T rows of one stream.
    """
    rows = max(cases)
    identity = {"scheme": SCHEME, "rows": rows, "inputs": [_identity(tensor) for tensor in op.inputs]}
    folder = out / "inputs" / f"{op.name}-{sha256_json(identity)[:16]}"
    with locked(out / "inputs" / ".lock"):
        if not folder.is_dir():
            with temporary_folder(folder.parent, op.name) as temporary:
                for tensor in op.inputs:
                    np.save(temporary / f"{tensor.name}.npy", _array(tensor, rows), allow_pickle=False)
                temporary.rename(folder)
    return folder


def checked(folder: Path, op: Op, cases: tuple[int, ...], pins: Path) -> tuple[dict[str, str | dict[str, str]], bool]:
    """The digests of `folder` for `cases`, and whether the repository pins all of them.

    Raises BadInput when a digest is off: this NumPy or this machine makes other inputs than the published ones.
    """
    pinned = read_json(pins) if pins.is_file() else {}
    found = digests(folder, op, cases)
    flat_pinned, flat_found = _flat(pinned), _flat(found)
    wrong = [name for name, digest in flat_found.items() if flat_pinned.get(name, digest) != digest]
    if wrong:
        raise BadInput(
            f"{folder}: the input {', '.join(wrong)} has another digest than {pins} pins; the files were "
            f"changed, or this NumPy ({np.__version__}) makes other numbers. Remove the folder and run again"
        )
    return found, all(name in flat_pinned for name in flat_found)


def _flat(tree: dict[str, str | dict[str, str]]) -> dict[str, str]:
    flat = {}
    for name, value in tree.items():
        if isinstance(value, str):
            flat[name] = value
        else:
            flat |= {f"{name} at {case} rows": digest for case, digest in value.items()}
    return flat


def _identity(tensor: Input) -> list[object]:
    return [tensor.name, list(tensor.shape), tensor.dtype, tensor.stream, float(np.float32(tensor.scale)).hex()]


def _array(tensor: Input, rows: int) -> npt.NDArray[np.float32]:
    shape = tensor.at(rows)
    if tensor.dtype != "F32":
        raise BadInput(f"input {tensor.name} is {tensor.dtype}; inputs are made in F32 (a candidate may round them)")
    return values(tensor.stream, int(np.prod(shape)), tensor.scale).reshape(shape)


def _digest(array: npt.NDArray[np.float32]) -> str:
    digest = hashlib.sha256()
    flat = array.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        digest.update(np.ascontiguousarray(flat[start : start + _BLOCK]).data)
    return digest.hexdigest()
