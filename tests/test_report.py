"""The published format is kept byte for byte, and what isn't a report is refused in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness import report
from harness.errors import BadInput
from harness.report import Comparison
from harness.workspace import REPOSITORY

PUBLISHED = REPOSITORY / "baselines" / "b200_timestep_mlp.json"


def test_the_published_report_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    loaded = report.load(PUBLISHED)
    report.write(tmp_path / "again.json", loaded)
    assert (tmp_path / "again.json").read_bytes() == PUBLISHED.read_bytes()
    assert len(loaded.results) == 8
    assert list(loaded.results["rl_kernel"].versus) == ["diffusers[plain]"]


def test_what_a_newer_writer_put_at_any_published_level_is_kept_in_its_place(tmp_path: Path) -> None:
    published = json.loads(PUBLISHED.read_text())
    cell = published["results"]["rl_kernel"]
    case = cell["vs diffusers[plain]"]["4"]
    case["out"][0] = {"ulp": 3, **case["out"][0]}
    cell["vs diffusers[plain]"]["4"] = {"latency": {"us": [1, 2.5]}, **case}
    published["results"]["rl_kernel"] = {"licence": None, **cell, "later": "x"}
    published["environment"] = {"driver": "1", **published["environment"]}
    text = json.dumps({"first": [1], **published, "last": {"b": 1, "a": 2}}, indent=2)
    path = tmp_path / "newer.json"
    path.write_text(text)
    loaded = report.load(path)
    assert report.dumps(loaded) == text
    assert list(loaded.results["rl_kernel"].versus) == ["diffusers[plain]"]


def test_what_is_built_here_has_no_misspelt_key() -> None:
    with pytest.raises(ValidationError, match="max_ulp"):
        Comparison(equal=True, differ=0, numel=1, max_abs=0.0, max_ulp=0)  # type: ignore[call-arg]


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
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": NaN', "NaN is no finite number); this is not a report"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": 1e999', "1e999 is no finite number"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": Infinity', "Infinity is no finite number"),
        ('"max_abs": 1.2069940567016602e-06', '"max_abs": -1.0', "greater than or equal to 0"),
        ('"kind": ', '"kidn": ', "kind: Field required"),
        ('"vs rl_kernel": {', '"vs rl_kernel": null, "x": {', "results.diffusers[megatron_te_native].vs rl_kernel"),
        ('"differ": 10099', '"differ": 10753', "10753 of 10752 elements differ"),
        ('"equal": false', '"equal": true', "4.out.0: 10099 of 10752 elements differ, and equal is true"),
        ('"1": {', '"\\u001b[2J": 1, "1": {', "vs diffusers[plain].?[2J:"),
        ('"op": ', '"\\u001b[2J": 1, "\\u001b[2J": 2, "op": ', "'?[2J' stands twice"),
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


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_has_one_bound_whatever_the_interpreter_allows(tmp_path: Path, opening: str, closing: str) -> None:
    path = tmp_path / "deep.json"
    for depth, readable in ((63, True), (64, False), (900, False)):
        path.write_text(f'{{"deep": {opening * depth}1{closing * depth}, {PUBLISHED.read_text()[1:]}')
        if readable:
            assert report.dumps(report.load(path))
        else:
            with pytest.raises(BadInput, match="nested deeper than 64 levels"):
                report.load(path)


def test_a_newer_format_says_to_update(tmp_path: Path) -> None:
    data = json.loads(PUBLISHED.read_text())
    data["bitmatrix"] = {"format": 3, "whatever": []}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data))
    with pytest.raises(BadInput, match="is of format 3; this bitmatrix reads up to 2: update it"):
        report.load(path)


# Whatever a report says, writing and reading it changes no byte -----------------------------------------------------

words = st.text(max_size=8)
maybe = st.none() | words
counts = st.integers(0, 2**53)
comparison = st.builds(
    lambda differ, more, largest: Comparison(
        equal=differ == 0, differ=differ, numel=differ + more, max_abs=largest
    ),
    st.just(0) | counts, counts, st.none() | st.floats(0, allow_nan=False, allow_infinity=False),
)  # fmt: skip
sections = st.dictionaries(
    words.map(lambda name: f"vs x{name}"),
    st.dictionaries(
        words, st.builds(report.Case, out=st.lists(comparison, max_size=2),
                         grads=st.dictionaries(words, comparison, max_size=2)), max_size=2),
    max_size=2,
)  # fmt: skip
details = st.builds(
    report.Details,
    references=st.lists(words, max_size=2),
    cells=st.dictionaries(
        words,
        st.builds(report.CellDetails, seconds=st.none() | st.floats(0, 1e9), overrides=st.lists(words, max_size=2)),
        max_size=2,
    ),
    stacks=st.dictionaries(words, st.builds(report.StackDetails), max_size=1),
)
reports = st.builds(
    report.Report,
    environment=st.builds(report.Environment, capability=st.none() | st.lists(counts, min_size=2, max_size=2)),
    cases=st.lists(st.integers(1, 65_536), max_size=4),
    results=st.dictionaries(
        words, st.builds(lambda source, found: report.CellResult(source=source, **found), words, sections), max_size=2
    ),
    bitmatrix=st.none() | details,
)


@given(built=reports)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_report_is_written_back_as_it_was_written(built: report.Report, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("report", numbered=True) / "report.json"
    report.write(path, built)
    assert report.dumps(report.load(path)) == report.dumps(built) == path.read_text()


# Classes -------------------------------------------------------------------------------------------------------------

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


def test_the_committed_h200_report_loads_and_is_written_back_byte_for_byte() -> None:
    path = REPOSITORY / "baselines" / "h200_timestep_mlp.json"
    loaded = report.load(path)
    assert report.dumps(loaded) == path.read_text()
    assert loaded.environment.gpu == "NVIDIA H200"
    assert [name for name, cell in loaded.bitmatrix.cells.items() if cell.inert] == []  # type: ignore[union-attr]
