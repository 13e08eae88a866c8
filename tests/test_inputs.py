"""Inputs are the same bytes everywhere, and a case is the beginning of one stream."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import inputs
from harness.cell.op import Op, load_op
from harness.errors import BadInput

CASES = (1, 4, 64, 2048)


@pytest.fixture(scope="module")
def op(kernels: Path) -> Op:
    return load_op(kernels / "timestep_mlp")


@pytest.fixture(scope="module")
def folder(op: Op, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs.make(tmp_path_factory.mktemp("out"), op, CASES)


def by_hand(stream: int, index: int, scale: float) -> np.float32:
    """One value by Python's own integers and fractions: no vectorised step of the generator is used."""
    words = np.random.Philox(key=stream).random_raw((index + 1) * 6)[index * 6 :]
    halves = [half for word in map(int, words) for half in (word & 0xFFFFFFFF, word >> 32)]
    centred = sum(halves) - 6 * (2**32 - 1)
    # Python rounds an integer to double exactly when it fits 53 bits; these have at most 36.
    return np.float32(np.float32(float(centred)) * np.float32(2.0**-32)) * np.float32(scale)


@given(stream=st.integers(1, 2**63), index=st.integers(0, 300), scale=st.sampled_from([1.0, 0.02, 1 / 16]))
@settings(max_examples=60)
def test_every_value_is_the_documented_sum(stream: int, index: int, scale: float) -> None:
    assert inputs.values(stream, index + 1, scale)[index] == by_hand(stream, index, scale)


@given(st.integers(0, 5000), st.integers(0, 5000))
@settings(max_examples=30)
def test_a_longer_stream_starts_with_the_shorter(a: int, b: int) -> None:
    short, long = sorted((a, b))
    assert np.array_equal(inputs.values(9, long, 1)[:short], inputs.values(9, short, 1))


def test_blocks_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inputs.values(3, 1000, 1)
    monkeypatch.setattr(inputs, "_BLOCK", 7)
    assert np.array_equal(inputs.values(3, 1000, 1), whole)


def test_values_are_near_normal_with_full_mantissas() -> None:
    sample = inputs.values(1, 1 << 18, 1).astype(np.float64)
    assert abs(sample.mean()) < 0.01
    assert abs(sample.std() - 1) < 0.01
    # On a coarse grid sums over many rows would be exact, and an order could never show.
    mantissas = np.frexp(sample)[0] * 2**24
    assert np.mean(mantissas % 2 == 1) > 0.4


def test_the_committed_digests_are_what_this_machine_makes(op: Op, folder: Path, kernels: Path) -> None:
    digests, pinned = inputs.checked(folder, op, CASES, kernels / "timestep_mlp" / "inputs.json")
    assert pinned
    assert set(digests) == {tensor.name for tensor in op.inputs}


def test_an_unpinned_case_is_recorded_as_unpinned(op: Op, folder: Path, kernels: Path) -> None:
    assert not inputs.checked(folder, op, (2,), kernels / "timestep_mlp" / "inputs.json")[1]


def test_an_input_whose_digest_is_off_is_named(op: Op, kernels: Path, tmp_path: Path) -> None:
    folder = inputs.make(tmp_path, op, (1, 4))
    array = np.load(folder / "b1.npy")
    array[7] = np.nextafter(array[7], np.float32(9))
    np.save(folder / "b1.npy", array)
    with pytest.raises(BadInput, match="the input b1 has another digest"):
        inputs.checked(folder, op, (1, 4), kernels / "timestep_mlp" / "inputs.json")


def test_scales_are_one_correctly_rounded_number(op: Op) -> None:
    scales = {tensor.name: np.float32(tensor.scale) for tensor in op.inputs}
    assert scales["w1"] == np.float32(1 / 16)
    assert scales["w2"] == np.float32(1 / math.sqrt(5376))
    assert scales["x"] == scales["upstream"] == 1


def test_making_them_again_touches_nothing(op: Op, folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert inputs.make(folder.parent.parent, op, CASES) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
