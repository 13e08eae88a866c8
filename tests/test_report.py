"""The published format is kept byte for byte, and what isn't a report is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import report
from harness.errors import BadInput
from harness.workspace import REPOSITORY

PUBLISHED = REPOSITORY / "baselines" / "b200_timestep_mlp.json"


def test_the_published_report_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    loaded = report.load(PUBLISHED)
    report.write(tmp_path / "again.json", loaded)
    assert (tmp_path / "again.json").read_bytes() == PUBLISHED.read_bytes()
    assert len(loaded.results) == 8
    assert list(loaded.results["rl_kernel"].versus) == ["diffusers[plain]"]


def test_what_a_newer_writer_put_beside_the_published_keys_is_kept(tmp_path: Path) -> None:
    data = json.loads(PUBLISHED.read_text())
    data["later"] = {"x": [1]}
    data["environment"]["later"] = 2
    data["results"]["rl_kernel"]["vs diffusers[plain]"]["4"]["out"][0]["ulp"] = 3
    path = tmp_path / "newer.json"
    path.write_text(json.dumps(data, indent=2))
    assert json.loads(report.dumps(report.load(path))) == data


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = PUBLISHED.read_text()
    assert old in text
    path = tmp_path / "report.json"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"differ": 10099', '"differ": -1', "greater than or equal to 0"),
        ('"differ": 10099', '"differ": 1.5', "valid integer"),
        ('"differ": 10099', '"differ": "10099"', "valid integer"),
        ('"equal": true', '"equal": 1', "valid boolean"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": NaN', "NaN is no finite number"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": 1e999', "1e999 is no finite number"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": Infinity', "Infinity is no finite number"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": -1.0', "greater than or equal to 0"),
        ('"kind": ', '"kidn": ', "kind: Field required"),
        ('"vs rl_kernel"', '"versus rl_kernel"', "results.diffusers[megatron_te_native]"),
        ('"op": "timestep_mlp"', '"op": "timestep_mlp", "op": "x"', "'op' stands twice"),
        ('"cases": [', '"cases": [0, ', "cases.0"),
        ('"numel": 2688', f'"numel": {"9" * 5000}', "not valid JSON"),
    ],
)
def test_a_report_that_is_not_one_is_refused_with_its_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = edited(tmp_path, old, new)
    with pytest.raises(BadInput) as caught:
        report.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"3", b"null", b"\xff", b"{", b"[" * 100_000, PUBLISHED.read_bytes()[:999]]
)
def test_what_is_no_whole_report_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=str(path)):
        report.load(path)


def test_a_newer_format_says_to_update(tmp_path: Path) -> None:
    data = json.loads(PUBLISHED.read_text())
    data["bitmatrix"] = {"format": 2, "whatever": []}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(BadInput, match="is of format 2; this bitmatrix reads up to 1: update it"):
        report.load(path)


digest = st.sampled_from(["aa", "bb", "cc"])
cells = st.dictionaries(
    st.sampled_from(["a", "b[x]", "c", "d"]),
    st.fixed_dictionaries({"1": st.fixed_dictionaries({"out": digest, "grads.x": digest})}),
)


@given(digests=cells)
@settings(max_examples=100)
def test_classes_are_a_partition_by_equal_digests(digests: dict[str, Any]) -> None:
    found = report.classes(digests)
    assert sorted(cell for group in found.whole for cell in group) == sorted(digests)
    for group in found.whole:
        assert len({json.dumps(digests[cell], sort_keys=True) for cell in group}) == 1
    assert len({json.dumps(digests[group[0]], sort_keys=True) for group in found.whole}) == len(found.whole)
    for tensor, groups in found.by_case.get("1", {}).items():
        for group in groups:
            assert len({digests[cell]["1"][tensor] for cell in group}) == 1
        assert sorted(cell for group in groups for cell in group) == sorted(digests)
