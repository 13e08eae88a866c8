"""How two tensors differ: distances in units in the last place, where it begins, how much of it, and special values.

Streamed like `harness.compare`, which says how many elements differ and by how much; this says what kind of difference
that is. Another order of summation moves results by a few units; a mantissa that was cut, by thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from harness.errors import BitmatrixError
from harness.tensors import ITEM_BYTES, TensorRef, blocks

BLOCK_BYTES = 64 << 10
"""Larger ones are no faster to read, and what is computed from them leaves the second-level cache."""

_Bits = npt.NDArray[np.unsignedinteger]
_Mask = npt.NDArray[np.bool_]

_SPECIAL = {
    "F64": (0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0001),
    "F32": (0x7F80_0000, 0x7F80_0001),
    "BF16": (0x7F80, 0x7F81),
    "F16": (0x7C00, 0x7C01),
    "F8_E5M2": (0x7C, 0x7D),
    # It has no infinities.
    "F8_E4M3": (0x7F, 0x7F),
}
"""By floating-point format: the magnitude bits of infinity, and of the first NaN."""

_SIGNED = ("I8", "I16", "I32", "I64")

_FINE_BITS = 8
"""Below 2**9 units each distance is counted on its own, above in steps of 1/256 of itself: for the median."""


@dataclass(frozen=True, kw_only=True)
class Detail:
    """What kind of difference two tensors have; every count is of elements whose bits differ.

    A distance in units in the last place (ULP) is how many numbers of the format lie between two finite elements, one
    of them counted; between +0 and -0 it is 0, between two integers their difference. `ulp_max` and `ulp_median` are of
    finite pairs that aren't equal, None without any; above 512 the median is rounded down by less than 1/256.
    `histogram` counts distances from each power of two to the next. `signed_zero`: +0 against -0. `infinity`: an
    infinity against another number. `nan`: a NaN against a number. `nan_payload`: two NaNs with other bits.
    `first_index` is the first such element's index by dimension, `first_bits` its two bit patterns as hex, ours first.
    Rows are indexes of the first dimension; a tensor without dimensions is one row.
    """

    ulp_max: int | None
    ulp_median: int | None
    histogram: dict[int, int]
    first_index: tuple[int, ...]
    first_bits: tuple[str, str]
    rows: int
    rows_differ: int
    signed_zero: int
    infinity: int
    nan: int
    nan_payload: int

    def swapped(self) -> Detail:
        """The same pair seen from its other side."""
        return Detail(**{**self.__dict__, "first_bits": self.first_bits[::-1]})


def explain(a: TensorRef, b: TensorRef, *, block_bytes: int = BLOCK_BYTES) -> Detail | None:
    """How two tensors of one shape and dtype differ, reading both once; None when every bit is equal.

    Raises BitmatrixError when shape or dtype differ, or a file can't be read.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        raise BitmatrixError(f"{a.name}: shape or dtype differ between {a.path} and {b.path}")
    unsigned = np.dtype(f"<u{ITEM_BYTES[a.dtype]}")
    seen = _Seen(dtype=a.dtype, rows=_Rows(length=a.numel // a.shape[0] if a.numel and a.shape else max(1, a.numel)))
    for block_a, block_b in zip(blocks(a, bytearray(block_bytes)), blocks(b, bytearray(block_bytes)), strict=True):
        seen.block(np.frombuffer(block_a, unsigned), np.frombuffer(block_b, unsigned))
    return seen.detail(a.shape)


@dataclass(kw_only=True)
class _Rows:
    """Counts the rows that hold a differing element; a row may span blocks."""

    length: int
    differ: int = 0
    _last: int = -1

    def see(self, different: _Mask, start: int) -> None:
        """A block that begins at element `start`."""
        first = start // self.length
        ends = np.arange(max(first * self.length, start - start % self.length) + self.length, start + different.size,
                         self.length) - start  # fmt: skip
        hit = np.logical_or.reduceat(different, np.concatenate(([0], ends)))
        found = np.flatnonzero(hit) + first
        if found.size:
            self.differ += int(found.size) - int(found[0] == self._last)
            self._last = int(found[-1])


@dataclass(kw_only=True)
class _Seen:
    """What blocks have shown so far."""

    dtype: str
    rows: _Rows
    position: int = 0
    first: tuple[int, str, str] | None = None
    ulp_max: int = 0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(65 << _FINE_BITS, np.int64))
    """Finite pairs by `_slot` of their distance; those at distance 0 aren't counted."""
    signed_zero: int = 0
    infinity: int = 0
    nan: int = 0
    nan_payload: int = 0

    def block(self, a: _Bits, b: _Bits) -> None:
        """Take in the next block of pairs."""
        different = a != b
        if different.any():
            self.rows.see(different, self.position)
            if self.first is None:
                at = int(np.argmax(different))
                digits = 2 * a.itemsize
                self.first = (self.position + at, f"{int(a[at]):0{digits}x}", f"{int(b[at]):0{digits}x}")
            self._distances(a, b, different)
        self.position += a.size

    def _distances(self, a: _Bits, b: _Bits, different: _Mask) -> None:
        if self.dtype not in _SPECIAL:
            signed = self.dtype in _SIGNED
            self._count(_of_integers(a, b, f"<i{a.itemsize}" if signed else a.dtype.str))
            return
        infinity, nan = _SPECIAL[self.dtype]
        bits = a.dtype.type((1 << 8 * a.itemsize - 1) - 1)
        magnitude_a, magnitude_b = a & bits, b & bits
        if max(int(magnitude_a.max()), int(magnitude_b.max())) >= infinity:
            special = different & ((magnitude_a >= infinity) | (magnitude_b >= infinity))
            nans = (magnitude_a >= nan).astype(np.uint8) + (magnitude_b >= nan)
            self.nan_payload += int(np.count_nonzero(special & (nans == 2)))
            self.nan += int(np.count_nonzero(special & (nans == 1)))
            self.infinity += int(np.count_nonzero(special & (nans == 0)))
            ordinary = different & ~special
            a, b, magnitude_a, magnitude_b = a[ordinary], b[ordinary], magnitude_a[ordinary], magnitude_b[ordinary]
            different = np.ones(a.size, np.bool_)
        distance = np.maximum(magnitude_a, magnitude_b) - np.minimum(magnitude_a, magnitude_b)
        opposite = (a ^ b) > bits
        if opposite.any():
            # Through zero: two finite magnitudes add up to less than the unsigned type holds.
            distance = np.where(opposite, magnitude_a + magnitude_b, distance)
            self.signed_zero += int(np.count_nonzero(different & (distance == 0)))
        self._count(distance)

    def _count(self, distance: _Bits) -> None:
        if distance.size:
            self.ulp_max = max(self.ulp_max, int(distance.max()))
            counts = np.bincount(_slot(distance))
            self.counts[: counts.size] += counts

    def detail(self, shape: tuple[int, ...]) -> Detail | None:
        """The whole, once every block was seen."""
        if self.first is None:
            return None
        index, ours, theirs = self.first
        finite = self.counts.copy()
        finite[0] = 0
        coarse = finite.reshape(-1, 1 << _FINE_BITS).sum(axis=1)
        return Detail(
            ulp_max=self.ulp_max or None,
            ulp_median=_median(finite),
            histogram={1 << power - 1: int(count) for power, count in enumerate(coarse) if count},
            first_index=tuple(int(part) for part in np.unravel_index(index, shape)) if shape else (),
            first_bits=(ours, theirs),
            rows=shape[0] if shape else 1,
            rows_differ=self.rows.differ,
            signed_zero=self.signed_zero,
            infinity=self.infinity,
            nan=self.nan,
            nan_payload=self.nan_payload,
        )


def _of_integers(a: _Bits, b: _Bits, dtype: str) -> _Bits:
    ours, theirs = a.view(dtype), b.view(dtype)
    # The larger less the smaller fits the unsigned integer of that width, however it wraps.
    difference: _Bits = np.maximum(ours, theirs).view(a.dtype) - np.minimum(ours, theirs).view(a.dtype)
    return difference


def _slot(distance: _Bits) -> npt.NDArray[np.int64]:
    """0 for 0; else 256 for 1 and 256 more for each power of two, and between them the fraction in 256 steps."""
    if distance.dtype.itemsize < 8 and int(distance.max()) < 1 << 24:
        exponents = distance.astype(np.float32).view(np.uint32) >> np.uint32(23 - _FINE_BITS)
        return np.maximum(exponents.astype(np.int64) - (126 << _FINE_BITS), 0)
    # Rounded towards zero to 53 bits first: rounding up could lift a distance into the next slot.
    wide = distance.astype(np.uint64)
    kept = np.where(wide >> np.uint64(53) > 0, wide >> np.uint64(11) << np.uint64(11), wide)
    slots = (kept.astype(np.float64).view(np.uint64) >> np.uint64(52 - _FINE_BITS)).astype(np.int64)
    return np.maximum(slots - (1022 << _FINE_BITS), 0)


def _median(counts: npt.NDArray[np.int64]) -> int | None:
    """The lower median of the counted distances, as the smallest distance of its slot."""
    total = int(counts.sum())
    if not total:
        return None
    slot = int(np.searchsorted(np.cumsum(counts), (total + 1) // 2))
    power, part = divmod(slot, 1 << _FINE_BITS)
    return math.ceil((1 + part / (1 << _FINE_BITS)) * 2.0 ** (power - 1))
