"""A tensor file is read strictly: whatever its bytes, it is either exactly the format or refused by name."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from harness import tensors
from harness.errors import BitmatrixError


def written(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


arrays = st.dictionaries(
    st.from_regex(r"[a-z.]{1,12}", fullmatch=True),
    st.tuples(st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<u1", "?"]), st.lists(st.integers(0, 5), max_size=3)),
    max_size=5,
)


@given(declared=arrays)
@settings(max_examples=60, deadline=None)
def test_what_the_formats_own_library_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, declared: dict[str, tuple[str, list[int]]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "file.safetensors"
    rng = np.random.default_rng(0)
    saved = {name: rng.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in declared.items()}
    save_file(saved, path)
    found = tensors.read_header(path)
    assert found.keys() == saved.keys()
    for name, array in saved.items():
        assert found[name].shape == array.shape
        assert found[name].numel == array.size
        assert tensors.sha256(found[name]) == hashlib.sha256(array.tobytes()).hexdigest()


REFUSED = {
    "nothing": (b"", "cut short"),
    "half a length": (b"\x01\x02", "cut short"),
    "a header of gigabytes": ((1 << 33).to_bytes(8, "little") + b"{}", "can't hold a header of 8589934592"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_without_a_whole_header_is_refused(tmp_path: Path, what: str) -> None:
    content, message = REFUSED[what]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(BitmatrixError, match=message) as caught:
        tensors.read_header(path)
    assert str(path) in str(caught.value)


HEADERS: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "valid JSON"),
    "no text": (b'{"\xff', "valid JSON"),
    "nested deeply": (b'{"a":' + b"[" * 100_000, "valid JSON"),
    "something after it": (b"{}{}", "valid JSON"),
    "no JSON number": (b'{"a": NaN}', "valid JSON .NaN is no JSON number"),
    "a list": ([], "no JSON object"),
    "a blank first": (b" {}", "must start with a brace"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "must start with a brace"),
    "metadata that is no object": ({"__metadata__": 3}, "must map text to text"),
    "metadata that is nested": ({"__metadata__": {"a": {}}}, "must map text to text"),
    "a name twice": (b'{"a": {}, "a": {}}', "stands twice"),
    "no entry": ({"a": 3}, "must have dtype, shape and data_offsets"),
    "a further key": ({"a": {**entry(), "x": 1}}, "must have dtype, shape and data_offsets"),
    "an unknown dtype": ({"a": entry(dtype="F31")}, "unknown dtype"),
    "a dtype that is no text": ({"a": entry(dtype=["F32"])}, "unknown dtype"),
    "a negative dimension": ({"a": entry(shape=[-2])}, "whole numbers"),
    "a true dimension": ({"a": entry(shape=[True, 2])}, "whole numbers"),
    "a fraction": ({"a": entry(shape=[2.0])}, "whole numbers"),
    "a huge dimension": ({"a": entry(shape=[1 << 64])}, "whole numbers"),
    "too many dimensions": ({"a": entry(shape=[1] * 17)}, "at most 16"),
    "three offsets": ({"a": entry(offsets=[0, 4, 8])}, "two whole numbers"),
    "a size that is off": ({"a": entry(shape=[3])}, "takes 12 bytes, data_offsets give 8"),
    "backwards": ({"a": entry(offsets=[8, 0])}, "takes 8 bytes, data_offsets give -8"),
    "a gap": ({"a": entry(shape=[1], offsets=[4, 8])}, "overlap or gap"),
    "an overlap": ({"a": entry(), "b": entry()}, "overlap or gap"),
    "too short": ({"a": entry(shape=[4], offsets=[0, 16])}, "cut short or added to"),
    "too long": ({"a": entry(shape=[1], offsets=[0, 4])}, "cut short or added to"),
    "a name with a control character": ({"a\n": entry()}, "plain text"),
    "a name that turns the writing round": ({"a\u202e": entry()}, "plain text"),
    "a name of half a letter": (b'{"\\ud800": {}}', "plain text"),
    "no name": ({"": entry()}, "plain text"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_is_not_the_formats_is_refused(tmp_path: Path, what: str) -> None:
    header, message = HEADERS[what]
    with pytest.raises(BitmatrixError, match=message):
        tensors.read_header(written(tmp_path / "x.safetensors", header, bytes(8)))


@pytest.mark.parametrize("header", [{"a" * 900_000: entry()}, {"a": entry(dtype="F" * 900_000)}, {"a" * 201: 0}])
def test_a_refusal_repeats_little_of_what_a_container_wrote(tmp_path: Path, header: Any) -> None:
    with pytest.raises(BitmatrixError) as caught:
        tensors.read_header(written(tmp_path / "x", header, bytes(8)))
    assert len(str(caught.value)) < len(str(tmp_path)) + 400


@pytest.mark.parametrize("key", ["dtype", "shape", "data_offsets"])
def test_nesting_just_short_of_pythons_limit_is_refused_too(tmp_path: Path, key: str) -> None:
    for depth in range(100, 1000, 50):
        nested = json.dumps({"a": entry() | {key: "@"}}).replace('"@"', "[" * depth + "]" * depth)
        with pytest.raises(BitmatrixError):
            tensors.read_header(written(tmp_path / "x", nested.encode(), bytes(8)))


def test_a_header_that_fits_the_file_but_is_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as stream:
        stream.write((1 << 30).to_bytes(8, "little"))
        stream.truncate(2 << 30)  # sparse
    with pytest.raises(BitmatrixError, match="a header of 1073741824 bytes is refused"):
        tensors.read_header(path)


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    good = written(tmp_path / "good", {})
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    assert tensors.read_header(good) == {}
    for name, message in {
        "link": "is a symbolic link",
        "pipe": "no regular file",
        ".": "can't be read|no regular file",
        "nothing": "can't be read",
    }.items():
        with pytest.raises(BitmatrixError, match=message):
            tensors.read_header(tmp_path / name)


def test_a_file_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x", {"a": entry()}, bytes(8))
    ref = tensors.read_header(path)["a"]
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(BitmatrixError, match="ended inside a"):
        tensors.sha256(ref)


@given(content=st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        found = tensors.read_header(path)
    except BitmatrixError:
        return
    assert sum(ref.nbytes for ref in found.values()) <= len(content)
