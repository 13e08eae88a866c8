"""What kind of difference: the streamed way gives what the definition gives, for every format, wherever blocks end."""

from __future__ import annotations

import json
import math
import statistics
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compare import FORMATS, bits, value, write

from harness.detail import Detail, explain
from harness.errors import BitmatrixError
from harness.tensors import ITEM_BYTES, TensorRef, read_header


def shaped(path: Path, dtype: str, data: bytes, shape: list[int]) -> TensorRef:
    header = json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return read_header(path)["t"]


def ordinal(dtype: str, pattern: int) -> int:
    """A finite element's place among the format's numbers, zero at zero; an integer's value."""
    if dtype not in FORMATS:
        return int(value(dtype, pattern))
    sign = 8 * ITEM_BYTES[dtype] - 1
    magnitude = pattern & (1 << sign) - 1
    return -magnitude if pattern >> sign else magnitude


def naive(dtype: str, a: list[int], b: list[int], width: int) -> Detail | None:
    unlike = [(index, x, y) for index, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if not unlike:
        return None
    values = [(value(dtype, x), value(dtype, y)) for _, x, y in unlike]
    finite = [
        abs(ordinal(dtype, x) - ordinal(dtype, y))
        for (_, x, y), pair in zip(unlike, values, strict=True)
        if all(map(math.isfinite, pair))
    ]
    distances = [distance for distance in finite if distance]
    histogram: dict[int, int] = {}
    for distance in sorted(distances):
        power = 1 << distance.bit_length() - 1
        histogram[power] = histogram.get(power, 0) + 1
    nans = [sum(map(math.isnan, pair)) for pair in values]
    index, x, y = unlike[0]
    digits = 2 * ITEM_BYTES[dtype]
    return Detail(
        ulp_max=max(distances, default=None),
        ulp_median=statistics.median_low(distances) if distances else None,
        histogram=histogram,
        first_index=(index // width, index % width),
        first_bits=(f"{x:0{digits}x}", f"{y:0{digits}x}"),
        rows=len(a) // width,
        rows_differ=len({index // width for index, _, _ in unlike}),
        signed_zero=finite.count(0),
        infinity=sum(
            nan == 0 and any(map(math.isinf, pair)) for nan, pair in zip(nans, values, strict=True)
        ),
        nan=nans.count(1),
        nan_payload=nans.count(2),
    )  # fmt: skip


@given(data=st.data(), dtype=st.sampled_from(sorted(ITEM_BYTES)), width=st.integers(1, 5))
@settings(max_examples=400, deadline=None)
def test_the_streamed_way_is_the_naive_way(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, dtype: str, width: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    rows = data.draw(st.integers(1, 8))
    a = data.draw(st.lists(bits(dtype), min_size=rows * width, max_size=rows * width))
    b = [data.draw(st.just(x) | bits(dtype) | st.just(x ^ 1)) for x in a]
    if dtype == "BOOL":
        a, b = [x & 1 for x in a], [x & 1 for x in b]
    unsigned = f"<u{ITEM_BYTES[dtype]}"
    ref_a = shaped(folder / "a", dtype, np.array(a, unsigned).tobytes(), [rows, width])
    ref_b = shaped(folder / "b", dtype, np.array(b, unsigned).tobytes(), [rows, width])
    found = explain(ref_a, ref_b, block_bytes=8 * data.draw(st.integers(1, 8)))
    expected = naive(dtype, a, b, width)
    if found is None or expected is None:
        assert found is expected
        return
    median, exact = found.ulp_median, expected.ulp_median
    assert {**found.__dict__, "ulp_median": 0} == {**expected.__dict__, "ulp_median": 0}
    assert (median is None) == (exact is None)
    if median is not None and exact is not None:
        assert exact - exact / 256 <= median <= exact
        assert median == exact or exact > 512
    other = explain(ref_b, ref_a)
    assert other is not None
    assert other.swapped() == found


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_a_mantissa_cut_to_tf32_shows_as_thousands_of_units(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal(100_000).astype(np.float32)
    cut = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    found = explain(write(tmp_path / "a", "F32", values.tobytes()), write(tmp_path / "b", "F32", cut.tobytes()))
    assert found is not None
    assert found.ulp_max == (1 << 13) - 1
    assert 3900 < (found.ulp_median or 0) < 4300


def test_zero_and_special_values_are_told_apart(tmp_path: Path) -> None:
    a = f32(0.0, math.inf, math.nan, 1.0, 2.0)
    b = f32(-0.0, -math.inf, 1.0, math.nan, 2.0)
    found = explain(write(tmp_path / "a", "F32", a), write(tmp_path / "b", "F32", b))
    assert found is not None
    assert (found.signed_zero, found.infinity, found.nan, found.nan_payload) == (1, 1, 2, 0)
    assert found.ulp_max is None
    assert found.histogram == {}
    assert found.first_bits == ("00000000", "80000000")
    payload = explain(
        write(tmp_path / "a", "F32", struct.pack("<I", 0x7FC00000)),
        write(tmp_path / "b", "F32", struct.pack("<I", 0xFFC00001)),
    )
    assert payload is not None
    assert payload.nan_payload == 1


def test_unlike_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BitmatrixError, match="shape or dtype differ"):
        explain(write(tmp_path / "a", "F32", f32(1)), write(tmp_path / "b", "F32", f32(1, 2)))
