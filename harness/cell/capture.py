"""Capture: a case's result tensors, checked against the op and written as one safetensors file.

The format is a 64-bit little-endian header size, a JSON header and the tensors' bytes
(https://github.com/huggingface/safetensors#format). It is written here because that package's low-level call
changed its form between the versions that stacks pin, and because this way no tensor is copied.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell.files import replacing
from harness.cell.op import Op
from harness.cell.status import Failed

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""safetensors' dtype names by those that numpy and torch share."""

_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_NONE: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)


@dataclass(frozen=True, kw_only=True)
class Raw:
    """A result as bytes: little-endian, C order. `dtype` is safetensors' name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def facts(self) -> dict[str, Any]:
        """What the claims say of it: dtype, shape and SHA-256."""
        return {"dtype": self.dtype, "shape": list(self.shape), "sha256": hashlib.sha256(self.data).hexdigest()}


def capture(op: Op, case: int, results: object, path: Path) -> dict[str, dict[str, Any]]:
    """Check one case's results, write them to `path`, and return each one's dtype, shape and SHA-256.

    Raises:
        Failed: a result is missing, unknown, no tensor, or has another dtype or shape than the op declares; or the
            file can't be written, and nothing is left of it.
    """
    tensors = checked(op, case, results)
    try:
        write(path, tensors)
    except OSError as error:
        raise Failed(f"{path.name} can't be written: {error}") from error
    return {tensor.name: tensor.facts for tensor in tensors}


def checked(op: Op, case: int, results: object) -> list[Raw]:
    """The results in the op's order, as bytes. Raises Failed in words when they aren't what the op declares."""
    if not isinstance(results, Mapping):
        raise Failed(f"case {case}: the candidate returned {type(results).__name__}, not results by name")
    expected = {tensor.name: tensor for tensor in op.results()}
    if results.keys() != expected.keys():
        raise Failed(f"case {case}: the candidate returned {_names(results)} where the op has {_names(expected)}")
    tensors = [raw(name, results[name], case) for name in expected]
    for tensor in tensors:
        declared = expected[tensor.name]
        if (tensor.dtype, tensor.shape) != (declared.dtype, declared.at(case)):
            raise Failed(
                f"case {case}: {tensor.name} is {tensor.dtype} {tensor.shape} "
                f"where the op declares {declared.dtype} {declared.at(case)}"
            )
    return tensors


def write(path: Path, tensors: list[Raw]) -> None:
    """Write a safetensors file, whole or not at all; tensors with larger elements first, so that all are aligned."""
    ordered = sorted(tensors, key=lambda tensor: -_element_size(tensor))
    header: dict[str, Any] = {}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.data.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replacing(path) as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            stream.write(tensor.data)


def raw(name: str, value: object, case: int) -> Raw:
    """One result as bytes. Raises Failed when it is no tensor, or of a dtype that a capture can't hold."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
    elif isinstance(value, np.ndarray):
        dtype = value.dtype.name
    else:
        raise Failed(f"case {case}: {name} is {type(value).__name__}, neither a numpy array nor a torch tensor")
    if dtype not in DTYPES:
        raise Failed(f"case {case}: {name} has dtype {dtype}, which a capture can't hold")
    data = _array_bytes(value) if isinstance(value, np.ndarray) else _tensor_bytes(value)
    return Raw(name=name, dtype=DTYPES[dtype], shape=tuple(value.shape), data=data)


def read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a capture that this process wrote, flat and mapped: BF16 as U16, what is no float as U8."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        data = np.memmap(path, np.uint8, "r", offset=8 + size + start, shape=(end - start,)) if end > start else _NONE
        found[name] = data.view(_NUMPY.get(entry["dtype"], np.uint8))
    return found


def _array_bytes(array: npt.NDArray[Any]) -> memoryview:
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    return little.reshape(-1).view(np.uint8).data


def _tensor_bytes(tensor: Any) -> memoryview:
    torch = sys.modules["torch"]
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # As bytes, because numpy has no bfloat16.
    data: memoryview = flat.view(torch.uint8).numpy().data
    return data


def _element_size(tensor: Raw) -> int:
    return tensor.data.nbytes // max(1, int(np.prod(tensor.shape, dtype=np.int64)))


def _names(mapping: Mapping[Any, Any]) -> str:
    return ", ".join(sorted(map(str, mapping))) or "nothing"
