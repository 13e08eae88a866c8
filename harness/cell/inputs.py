"""Inputs: the host's .npy files, checked against their digests before anything uses them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell import job
from harness.cell.capture import DTYPES
from harness.cell.op import ROWS, Input, Op
from harness.cell.status import Failed

Array = npt.NDArray[Any]


class Inputs:
    """The op's inputs, mapped read-only; `digests` holds the SHA-256 found of each, with rows by case.

    Raises Failed, naming the tensor, when a file is absent or has another dtype, shape or digest than declared.
    """

    def __init__(self, op: Op, source: job.Inputs, cases: tuple[int, ...]) -> None:
        self._tensors = op.inputs
        self._arrays = {tensor.name: _load(tensor, source, max(cases)) for tensor in op.inputs}
        self.digests = {tensor.name: self._checked(tensor, source.digests, cases) for tensor in op.inputs}

    def at(self, case: int) -> dict[str, Array]:
        """The inputs of one case: the first `case` rows of tensors with rows, the others as they are."""
        return {
            tensor.name: self._arrays[tensor.name][:case] if tensor.has_rows else self._arrays[tensor.name]
            for tensor in self._tensors
        }

    def _checked(self, tensor: Input, declared: job.Digests, cases: tuple[int, ...]) -> str | dict[str, str]:
        array, expected = self._arrays[tensor.name], declared.get(tensor.name)
        if not tensor.has_rows:
            return _digest(tensor.name, array, expected)
        by_case = expected if expected is not None and not isinstance(expected, str) else {}
        return {
            str(case): _digest(f"{tensor.name} at {case} rows", array[:case], by_case.get(str(case))) for case in cases
        }


def _load(tensor: Input, source: job.Inputs, rows: int) -> Array:
    path = source.folder / f"{tensor.name}.npy"
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Failed(f"input {tensor.name}: {path} can't be read ({error})") from error
    if ROWS in tensor.shape[1:]:
        raise Failed(f"input {tensor.name}: only the first dimension can be {ROWS}, not as in {tensor.shape}")
    expected = tensor.at(max(rows, len(array)) if tensor.has_rows else rows)
    if array.shape != expected or DTYPES.get(array.dtype.name) != tensor.dtype or not array.flags.c_contiguous:
        raise Failed(
            f"input {tensor.name}: {path} holds {array.dtype} {array.shape}; "
            f"the op declares {tensor.dtype} {expected}, in C order"
        )
    return array


def _digest(name: str, array: Array, expected: object) -> str:
    digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
    if digest != expected:
        raise Failed(f"input {name} has digest {digest} where {expected or 'none'} is declared")
    return digest
