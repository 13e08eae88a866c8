"""What counts is bits; the fast way gives what the naive one gives, for every format and wherever blocks end."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.compare import Comparison, compare, identical
from harness.errors import BitmatrixError
from harness.tensors import ITEM_BYTES, TensorRef, read_header

Bits = npt.NDArray[np.unsignedinteger]


def write(path: Path, dtype: str, data: bytes) -> TensorRef:
    count = len(data) // ITEM_BYTES[dtype]
    header = json.dumps({"t": {"dtype": dtype, "shape": [count], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return read_header(path)["t"]


FORMATS = {"F32": (8, 23), "F16": (5, 10), "BF16": (8, 7), "F64": (11, 52), "F8_E5M2": (5, 2), "F8_E4M3": (4, 3)}
"""Exponent and mantissa bits of the floating-point formats."""


def value(dtype: str, bits: int) -> float | int:
    """One element's value, by the format's definition, in Python's own arithmetic: integers stay exact."""
    if dtype not in FORMATS:
        signed = dtype.startswith("I") and bits >> (8 * ITEM_BYTES[dtype] - 1)
        return bits - (1 << 8 * ITEM_BYTES[dtype]) if signed else bits
    exponent_bits, mantissa_bits = FORMATS[dtype]
    sign = -1 if bits >> (exponent_bits + mantissa_bits) else 1
    exponent = bits >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = bits & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    if dtype == "F8_E4M3":
        if exponent == 15 and mantissa == 7:
            return math.nan
    elif exponent == (1 << exponent_bits) - 1:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


def naive(dtype: str, a: list[int], b: list[int]) -> Comparison:
    pairs = [(value(dtype, x), value(dtype, y)) for x, y in zip(a, b, strict=True)]
    finite = [min(float(abs(x - y)), sys.float_info.max) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
    differ = sum(x != y for x, y in zip(a, b, strict=True))
    return Comparison(equal=not differ, differ=differ, numel=len(a), max_abs=max(finite, default=None))


def edges(dtype: str) -> list[int]:
    """A format's own edges: zeros, infinities, NaNs, the smallest, the largest, around the first normal number, one."""
    size = 8 * ITEM_BYTES[dtype]
    if dtype not in FORMATS:
        return [0, 1, (1 << size - 1) - 1, 1 << size - 1, (1 << size) - 1]
    exponent, mantissa = FORMATS[dtype]
    infinity = (1 << exponent) - 1 << mantissa
    one = (1 << exponent - 1) - 1 << mantissa
    unsigned = [
        0,
        1,
        infinity - 1,
        infinity,
        infinity + 1,
        (1 << size - 1) - 1,
        (1 << mantissa) - 1,
        1 << mantissa,
        one,
    ]
    return [sign << size - 1 | bits for sign in (0, 1) for bits in unsigned]


def bits(dtype: str) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << 8 * ITEM_BYTES[dtype]) - 1) | st.sampled_from(edges(dtype))


@given(data=st.data(), dtype=st.sampled_from(sorted(ITEM_BYTES)))
@settings(max_examples=400, deadline=None)
def test_the_fast_way_is_the_naive_way(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    a = data.draw(st.lists(bits(dtype), max_size=30))
    near = [st.just(x) | bits(dtype) | st.just(x ^ 1) for x in a]
    b = [data.draw(choice) for choice in near]
    if dtype == "BOOL":
        a, b = [x & 1 for x in a], [x & 1 for x in b]
    unsigned = f"<u{ITEM_BYTES[dtype]}"
    ref_a = write(folder / "a", dtype, np.array(a, unsigned).tobytes())
    ref_b = write(folder / "b", dtype, np.array(b, unsigned).tobytes())
    block_bytes = 8 * data.draw(st.integers(1, 8))
    assert compare(ref_a, ref_b, block_bytes=block_bytes) == naive(dtype, a, b)
    assert identical(ref_a, block_bytes=block_bytes) == compare(ref_a, ref_a) == naive(dtype, a, a)


@given(st.lists(st.tuples(st.floats(1, 2, width=32), st.floats(1, 2, width=32)), min_size=1, max_size=200))
@settings(max_examples=100, deadline=None)
def test_the_largest_difference_survives_a_rounded_first_look(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[float, float]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    big, small = np.array(pairs, np.float32).T
    # Differences of unlike magnitudes: float32 rounds nearly all of them, so many round to the same number.
    a, b = np.ascontiguousarray(big * np.float32(2**12)), np.ascontiguousarray(small * np.float32(2**-12))
    found = compare(write(folder / "a", "F32", a.tobytes()), write(folder / "b", "F32", b.tobytes()), block_bytes=64)
    assert found.max_abs == float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64))))


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_difference_that_float32_cant_tell_from_the_largest_so_far_still_counts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    # 4096 less up to three steps of 2**-18, where float32 has steps of 2**-12: one float32, seven differences.
    a, b = np.full(len(steps), 4096, np.float32), np.array(steps, np.float32) * np.float32(2**-18)
    found = compare(write(folder / "a", "F32", a.tobytes()), write(folder / "b", "F32", b.tobytes()), block_bytes=4)
    assert found.max_abs == 4096 - min(steps) * 2.0**-18


def f32(folder: Path, name: str, values: list[float]) -> TensorRef:
    return write(folder / name, "F32", np.array(values, "<f4").tobytes())


@pytest.mark.parametrize(
    ("a", "b", "differ", "max_abs"),
    [
        ([0.0], [-0.0], 1, 0.0),
        ([math.nan], [math.nan], 0, None),
        ([math.inf], [-math.inf], 1, None),
        ([math.inf, 1.0], [math.inf, 1.5], 1, 0.5),
        ([math.inf, 1.0], [2.0, 1.5], 2, 0.5),
        ([2.0, 1.0], [-math.inf, 1.5], 2, 0.5),
        ([2.0, 1.0], [math.nan, 1.5], 2, 0.5),
        ([math.inf, 3.4e38], [1.0, -3.4e38], 2, 2 * float(np.float32(3.4e38))),
        ([3.4e38], [-3.4e38], 1, 2 * float(np.float32(3.4e38))),
        ([1e-45], [-1e-45], 1, 2 * float(np.float32(1e-45))),
        ([], [], 0, None),
    ],
)
def test_signed_zeros_nans_and_infinities(
    tmp_path: Path, a: list[float], b: list[float], differ: int, max_abs: float | None
) -> None:
    found = compare(f32(tmp_path, "a", a), f32(tmp_path, "b", b))
    assert found == Comparison(equal=differ == 0, differ=differ, numel=len(a), max_abs=max_abs)


def test_integers_beyond_float64s_exact_range_still_show_their_difference(tmp_path: Path) -> None:
    large, low, high = 1 << 60, -(1 << 63), (1 << 63) - 1
    a = write(tmp_path / "a", "I64", np.array([large + 1, low], "<i8").tobytes())
    b = write(tmp_path / "b", "I64", np.array([large, low], "<i8").tobytes())
    c = write(tmp_path / "c", "I64", np.array([large, high], "<i8").tobytes())
    assert compare(a, b).max_abs == 1
    assert compare(a, c).max_abs == float((1 << 64) - 1)


def test_a_difference_beyond_float64_is_a_number_that_json_has(tmp_path: Path) -> None:
    a = write(tmp_path / "a", "F64", np.array([1.7e308]).tobytes())
    b = write(tmp_path / "b", "F64", np.array([-1.7e308]).tobytes())
    assert json.dumps(compare(a, b).max_abs, allow_nan=False) == repr(sys.float_info.max)


def test_unlike_shapes_or_formats_are_not_compared(tmp_path: Path) -> None:
    one, two = f32(tmp_path, "a", [1]), f32(tmp_path, "b", [1, 2])
    with pytest.raises(BitmatrixError, match=r"F32 \[1\] in .*F32 \[2\] in"):
        compare(one, two)
    with pytest.raises(BitmatrixError):
        compare(one, write(tmp_path / "c", "I32", bytes(4)))


def test_memory_stays_flat(tmp_path: Path) -> None:
    import tracemalloc

    values = np.random.default_rng(0).standard_normal(4 << 20, np.float32)
    a = write(tmp_path / "a", "F32", values.tobytes())
    b = write(tmp_path / "b", "F32", (values * np.float32(1.0001)).tobytes())
    tracemalloc.start()
    compare(a, b)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20, "a 16 MiB pair took more than 8 MiB"
