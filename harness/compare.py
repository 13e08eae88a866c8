"""Bit comparison of two tensors, streamed: memory stays flat whatever their size.

What counts is bits: +0 and -0 differ, and a NaN equals a NaN of the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import BitmatrixError
from harness.tensors import ITEM_BYTES, TensorRef, blocks

BLOCK_BYTES = 256 << 10
"""Both blocks and what is computed from them fit a core's second-level cache."""

_Bits = npt.NDArray[np.unsignedinteger]
_UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_EXACT_IN_DOUBLE = {
    "BOOL": "<u1",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
"""Converted to double before the difference is taken: exactly, but for 64-bit integers beyond 2**53, which round."""

_SLACK = 2.0**-22
"""More than the relative error of a float32 difference and its comparison in double (each at most 2**-24)."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two tensors compare, as the published format says it.

    `equal`: every bit. `differ`: elements whose bit patterns differ. `max_abs`: the largest |a - b| over pairs that are
    both finite, in float64; None when there is no such pair.
    """

    equal: bool
    differ: int
    numel: int
    max_abs: float | None


def compare(a: TensorRef, b: TensorRef, *, block_bytes: int = BLOCK_BYTES) -> Comparison:
    """Compare two tensors of one shape and dtype, reading both once.

    Raises BitmatrixError when shape or dtype differ (a capture is held against the op before it is compared) or a file
    can't be read.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        raise BitmatrixError(
            f"{a.name} is {a.dtype} {list(a.shape)} in {a.path}, {b.dtype} {list(b.shape)} in {b.path}"
        )
    unsigned = _UNSIGNED[ITEM_BYTES[a.dtype]]
    differ, largest = 0, _Largest(a.dtype)
    for block_a, block_b in zip(blocks(a, bytearray(block_bytes)), blocks(b, bytearray(block_bytes)), strict=True):
        bits_a, bits_b = np.frombuffer(block_a, unsigned), np.frombuffer(block_b, unsigned)
        different = int(np.count_nonzero(bits_a != bits_b))
        differ += different
        if different:
            largest.see(bits_a, bits_b)
        elif largest.value is None:
            largest.see_equal(bits_a)
    return Comparison(equal=differ == 0, differ=differ, numel=a.numel, max_abs=largest.value)


def identical(ref: TensorRef, *, block_bytes: int = BLOCK_BYTES) -> Comparison:
    """What `compare` says of a tensor and its equal; reads only as far as the first finite element."""
    largest = _Largest(ref.dtype)
    for block in blocks(ref, bytearray(block_bytes)):
        largest.see_equal(np.frombuffer(block, _UNSIGNED[ITEM_BYTES[ref.dtype]]))
        if largest.value is not None:
            break
    return Comparison(equal=True, differ=0, numel=ref.numel, max_abs=largest.value)


class _Largest:
    """The largest difference of finite pairs so far.

    For formats that fit float32 a difference is first taken there: where its rounded maximum can't beat the largest so
    far, nothing is computed in double; where it can, only the elements near that maximum are.
    """

    def __init__(self, dtype: str) -> None:
        self.value: float | None = None
        self._dtype = dtype

    def see_equal(self, bits: _Bits) -> None:
        """A block of pairs that are equal in every bit."""
        if self.value is None and np.isfinite(_values(bits, self._dtype)).any():
            self.value = 0.0

    def see(self, bits_a: npt.NDArray[np.unsignedinteger], bits_b: _Bits) -> None:
        """A block of pairs."""
        a, b = _values(bits_a, self._dtype), _values(bits_b, self._dtype)
        with np.errstate(all="ignore"):
            if a.dtype == np.float32:
                difference = np.subtract(a, b)
                np.abs(difference, out=difference)
                # NaN comes only from a pair that isn't finite, and fmax passes it over.
                top = float(np.fmax.reduce(difference))
                if np.isfinite(top) and self.value is not None and top * (1 + _SLACK) <= self.value:
                    return
                if np.isfinite(top):
                    near = difference >= np.float32(top * (1 - _SLACK))
                    a, b = a[near], b[near]
            self._exact(a.astype(np.float64), b.astype(np.float64))

    def _exact(self, a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> None:
        finite = np.isfinite(a) & np.isfinite(b)
        if finite.any():
            top = float(np.max(np.abs(a[finite] - b[finite])))
            self.value = top if self.value is None else max(self.value, top)


def _values(bits: _Bits, dtype: str) -> npt.NDArray[np.float32 | np.float64]:
    """The elements' values, exactly: as float32 where the format fits it, else as float64."""
    match dtype:
        case "F32":
            return bits.view("<f4")
        case "F16":
            return bits.view("<f2").astype(np.float32)
        case "BF16":
            return (bits.astype("<u4") << 16).view("<f4")
        case "F8_E4M3":
            return _E4M3[bits]
        case "F8_E5M2":
            return (bits.astype("<u2") << 8).view("<f2").astype(np.float32)  # float16's upper byte
        case _:
            return np.asarray(bits.view(_EXACT_IN_DOUBLE[dtype]).astype(np.float64))


def _e4m3() -> npt.NDArray[np.float32]:
    """Every value of the 8-bit format without infinities: bias 7, all ones is NaN (OCP 8-bit floating point, 2023)."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7) / 8
    magnitude = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    values = np.where(byte & 128, -magnitude, magnitude)
    return np.where((byte & 127) == 127, np.nan, values).astype(np.float32)


_E4M3 = _e4m3()
