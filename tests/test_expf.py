"""The kernel's exponential is the nearest float to the real one; tests/native/expf_exhaustive.cpp tries every float."""

from __future__ import annotations

import decimal
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from native.build import OP_FOLDER, Kernel
from native.exact import nearest_float32

from harness.cell.op import load_module

Array = npt.NDArray[np.float32]

NEAR_TIES = ("-0x1.d2259ap+3", "-0x1.e1dbe2p-8", "0x1.fdff02p-17", "-0x1.c1c4b8p-10", "-0x1p-25", "0x1.8d7cb6p-12")
"""The floats whose exponentials come nearest to a tie, found by the exhaustive run; the first misses it by 1.27 ulp."""

# ln of the largest float and of the smallest normal and subnormal ones: where the result changes its kind.
EDGES = (88.72283, -87.33655, -103.27893, -103.97208, 0.0)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return Kernel(request.param)


def bits(values: Array) -> npt.NDArray[np.uint32]:
    return values.view(np.uint32)


def around(value: float, count: int) -> list[np.float32]:
    """`count` floats on each side of a value, and the value."""
    middle = int(np.float32(value).view(np.int32))
    near = np.arange(max(middle & ~0x7FFFFFFF, middle - count), middle + count + 1, dtype=np.int64)
    return list(near.astype(np.int32).view(np.float32))


def test_the_hardest_floats_round_as_a_hundred_digits_say(kernel: Kernel) -> None:
    hard = [np.float32(float.fromhex(text)) for text in NEAR_TIES]
    hard += [value for edge in EDGES for value in around(edge, 8)]
    with decimal.localcontext() as context:
        context.prec = 100
        expected = [nearest_float32(Fraction(decimal.Decimal(float(value)).exp())) for value in hard]
    found = kernel.expf(np.array(hard, dtype=np.float32))
    assert bits(found).tolist() == bits(np.array(expected)).tolist()


def test_floats_of_every_size_round_as_a_long_double_says(kernel: Kernel) -> None:
    reference = load_module(OP_FOLDER / "reference.py", "reference")
    patterns = np.random.default_rng(20).integers(0, 2**32, 1 << 18, dtype=np.uint32)
    within = np.random.default_rng(21).uniform(-105, 89, 1 << 18).astype(np.float32)
    x = np.concatenate([patterns.view(np.float32), within])
    expected, found = reference.expf(x), kernel.expf(x)
    nan = np.isnan(expected)
    assert np.array_equal(nan, np.isnan(found))
    assert np.array_equal(bits(found)[~nan], bits(expected)[~nan])


def test_infinities_zeros_and_nan_have_their_exponentials(kernel: Kernel) -> None:
    found = kernel.expf(np.array([np.inf, -np.inf, 0.0, -0.0, np.nan, 3e38, -3e38, 1e-45], dtype=np.float32))
    expected = np.array([np.inf, 0.0, 1.0, 1.0, np.nan, np.inf, 0.0, 1.0], dtype=np.float32)
    assert np.array_equal(found, expected, equal_nan=True)
    assert not np.signbit(found[[1, 6]]).any()
