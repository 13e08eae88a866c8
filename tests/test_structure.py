"""The structure of two reports: what is missing, extra, in another order or of another kind is named by its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import cli, report, structure
from harness.workspace import REPOSITORY

BASELINE = REPOSITORY / "baselines" / "b200_timestep_mlp.json"
PUBLISHED = report.load(BASELINE)


def changed(tmp_path: Path, data: dict[str, Any]) -> list[str]:
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data))
    return [str(difference) for difference in structure.differences(PUBLISHED, report.load(path))]


def published() -> dict[str, Any]:
    return dict(json.loads(BASELINE.read_text()))


@given(factor=st.integers(0, 3))
def test_a_report_has_its_own_structure_whatever_its_values(factor: int) -> None:
    other = PUBLISHED.model_copy(deep=True)
    for result in other.results.values():
        for cases in result.versus.values():
            for case in cases.values():
                for comparison in case.out:
                    comparison.differ *= factor
                    comparison.max_abs = None
    assert structure.differences(PUBLISHED, other) == []


def test_a_missing_cell_is_named(tmp_path: Path) -> None:
    data = published()
    del data["results"]["rl_kernel"]
    assert changed(tmp_path, data) == ["missing: results.rl_kernel"]


def test_a_missing_gradient_and_case_are_named(tmp_path: Path) -> None:
    data = published()
    section = data["results"]["rl_kernel"]["vs diffusers[plain]"]
    del section["64"], section["4"]["grads"]["w2"]
    place = "missing: results.rl_kernel.vs diffusers[plain]"
    assert changed(tmp_path, data) == [f"{place}.4.grads.w2", f"{place}.64"]


def test_another_order_of_keys_is_named(tmp_path: Path) -> None:
    data = published()
    libraries = data["environment"]["libraries"]
    libraries["torch"] = libraries.pop("torch")
    (line,) = changed(tmp_path, data)
    assert line.startswith("order: environment.libraries: triton, ")


def test_what_stands_beside_is_extra_and_takes_nothing_away(tmp_path: Path) -> None:
    data = published()
    data["results"]["te[plain]"] = data["results"]["rl_kernel"]
    data["environment"]["mode_environment"]["more"] = {}
    assert changed(tmp_path, data) == ["extra: environment.mode_environment.more", "extra: results.te[plain]"]


def test_other_cases_are_another_structure(tmp_path: Path) -> None:
    data = published()
    data["cases"] = [1, 4]
    assert changed(tmp_path, data) == ["missing: cases: [1, 4], where [1, 4, 64, 2048] is wanted"]


def test_a_value_of_another_kind_is_named(tmp_path: Path) -> None:
    data = published()
    data["environment"]["mode_environment"]["vllm"]["CUBLASLT_WORKSPACE_SIZE"] = "text like before"
    assert changed(tmp_path, data) == []
    data["results"]["rl_kernel"]["vs diffusers[plain]"]["4"]["out"] = []
    (line,) = changed(tmp_path, data)
    assert line == "missing: results.rl_kernel.vs diffusers[plain].4.out: 0 of 1 items"


def test_a_cell_without_a_result_is_named_with_its_reason() -> None:
    ours = report.load(REPOSITORY / "docs" / "example" / "cpu_timestep_mlp.json")
    assert ours.bitmatrix is not None
    wanted = ours.model_copy(deep=True)
    del ours.results["golden"]
    ours.bitmatrix.cells["golden"].status = "unavailable"
    ours.bitmatrix.cells["golden"].reason = "no such stack"
    assert [str(found) for found in structure.differences(wanted, ours)] == [
        "missing: results.golden: unavailable: no such stack"
    ]


@pytest.mark.parametrize(("extra", "code"), [(False, 1), (True, 0)])
def test_the_command_fails_for_what_is_missing_and_not_for_what_is_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: bool, code: int
) -> None:
    data = published()
    if extra:
        data["results"]["another"] = data["results"]["rl_kernel"]
    else:
        del data["results"]["rl_kernel"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    assert cli.main(["structure", str(BASELINE), str(path)]) == code
    assert ("extra: results.another" if extra else "missing: results.rl_kernel") in capsys.readouterr().out
