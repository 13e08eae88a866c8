"""Bit comparison of two tensors, streamed: memory stays flat whatever their size.

What counts is bits: +0 and -0 differ, and a NaN equals a NaN of the same bits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import BitmatrixError
from harness.tensors import ITEM_BYTES, TensorRef, blocks

BLOCK_BYTES = 128 << 10
"""Both blocks and what is computed from them fit a core's second-level cache."""

_Bits = npt.NDArray[np.unsignedinteger]
_Floats = npt.NDArray[np.float32 | np.float64]
_UNSIGNED: dict[int, np.dtype[np.unsignedinteger]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_INTEGERS = {
    "BOOL": "<u1",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two tensors compare, as the published format says it.

    `equal`: every bit. `differ`: elements whose bit patterns differ. `max_abs`: the largest |a - b| over pairs that are
    both finite, in float64; None when there is no such pair. Integers (and BOOL, by its byte) are subtracted exactly,
    then rounded once. A difference of two F64 beyond float64's range is given as its largest number: JSON has no
    infinity.
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
    differ, largest = 0, _Largest(a.dtype, block_bytes // unsigned.itemsize)
    for block_a, block_b in zip(blocks(a, bytearray(block_bytes)), blocks(b, bytearray(block_bytes)), strict=True):
        bits_a, bits_b = np.frombuffer(block_a, unsigned), np.frombuffer(block_b, unsigned)
        different = int(np.count_nonzero(bits_a != bits_b))
        differ += different
        if different:
            largest.see(bits_a, bits_b)
        else:
            largest.see_equal(bits_a)
    return Comparison(equal=differ == 0, differ=differ, numel=a.numel, max_abs=largest.value)


def identical(ref: TensorRef, *, block_bytes: int = BLOCK_BYTES) -> Comparison:
    """What `compare` says of a tensor and its equal; reads only as far as the first block with a finite element."""
    unsigned = _UNSIGNED[ITEM_BYTES[ref.dtype]]
    largest = _Largest(ref.dtype, block_bytes // unsigned.itemsize)
    for block in blocks(ref, bytearray(block_bytes)):
        largest.see_equal(np.frombuffer(block, unsigned))
        if largest.value is not None:
            break
    return Comparison(equal=True, differ=0, numel=ref.numel, max_abs=largest.value)


class _Largest:
    """The largest difference of finite pairs so far, in blocks of at most `elements`; None before the first such pair.

    For floating-point formats that fit float32, a difference is first taken there. Rounding never swaps the order of
    two numbers: so a block whose largest rounded difference is below the largest so far, rounded alike, has nothing
    above it, and needs no float64.
    """

    def __init__(self, dtype: str, elements: int) -> None:
        self.value: float | None = None
        self._dtype = dtype
        # Kept: memory that is given back and fetched anew for each block can cost more than the arithmetic.
        self._single, self._double = np.empty(elements, np.float32), np.empty(elements, np.float64)

    def see_equal(self, bits: _Bits) -> None:
        """A block of pairs that are equal in every bit: all it can show is that there is a finite pair."""
        if self.value is None:
            self.see(bits, bits)

    def see(self, bits_a: _Bits, bits_b: _Bits) -> None:
        """A block of pairs."""
        if self._dtype in _INTEGERS:
            found: float | None = _between_integers(bits_a, bits_b, _INTEGERS[self._dtype])
        else:
            # Signalling NaNs, overflow to infinity, infinity less infinity: all are meant.
            with np.errstate(all="ignore"):
                found = self._between_floats(_values(bits_a, self._dtype), _values(bits_b, self._dtype))
        if found is not None and (self.value is None or found > self.value):
            self.value = found

    def _between_floats(self, a: _Floats, b: _Floats) -> float | None:
        """The largest difference in a block; None when it has no finite pair or surely nothing above `value`."""
        scratch = self._double if a.dtype == np.float64 else self._single
        top = _top(a, b, scratch)
        if np.isinf(top):
            # An infinity, or a difference beyond the format. Pairs that aren't finite become NaN, which is passed over.
            a = np.where(np.isfinite(a) & np.isfinite(b), a, a.dtype.type(np.nan))
            top = _top(a, b, scratch)
        if np.isnan(top) or (self.value is not None and top < a.dtype.type(self.value)):
            return None
        if scratch is self._single:
            top = _top(a, b, self._double)
        return min(float(top), sys.float_info.max)


def _between_integers(bits_a: _Bits, bits_b: _Bits, dtype: str) -> float:
    a, b = bits_a.view(dtype), bits_b.view(dtype)
    # The larger less the smaller fits the unsigned integer of that width, however it wraps.
    difference = np.maximum(a, b).view(bits_a.dtype) - np.minimum(a, b).view(bits_a.dtype)
    return float(int(difference.max()))


def _top(a: _Floats, b: _Floats, scratch: _Floats) -> np.floating:
    """The largest |a - b|, subtracted in the type of `scratch`, which it overwrites; NaN when all are."""
    difference = scratch[: a.size]
    np.subtract(a, b, out=difference, dtype=difference.dtype)
    np.abs(difference, out=difference)
    top: np.floating = np.fmax.reduce(difference)
    return top


def _values(bits: _Bits, dtype: str) -> _Floats:
    """The values of a floating-point format, exactly: F64 as it is, every other as float32."""
    match dtype:
        case "F64":
            return bits.view("<f8")
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
            raise ValueError(f"no values are defined for {dtype}")


def _e4m3() -> npt.NDArray[np.float32]:
    """Every value of the 8-bit format without infinities: bias 7, all ones is NaN (OCP 8-bit floating point, 2023)."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, (byte & 7) / 8
    magnitude = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    values = np.where(byte & 128, -magnitude, magnitude)
    return np.where((byte & 127) == 127, np.nan, values).astype(np.float32)


_E4M3 = _e4m3()
