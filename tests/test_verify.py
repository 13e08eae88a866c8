"""A result is held against a baseline in three grades, with what changed in the environment beside each difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from project import GOOD, OTHER, Project

from harness import cli, report, verify
from harness.workspace import REPOSITORY


@pytest.fixture
def made(tmp_path: Path) -> Project:
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})
    assert cli.main(["matrix", *project.options(isolation="host")]) == 0
    shutil.copyfile(project.latest() / "report.json", tmp_path / "baseline.json")
    return project


def held(project: Project, *options: str) -> int:
    baseline = str(project.root / "baseline.json")
    return cli.main(["verify", baseline, *project.options(isolation="host"), *options])


def candidate(project: Project, name: str, text: str) -> None:
    (project.op / "candidates" / f"{name}.py").write_text(text)


def test_the_same_matrix_gives_the_same_bits(made: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert held(made) == 0
    said = capsys.readouterr().out
    assert "good: same bits" in said
    assert "other: same bits" in said
    assert "same bits (by digests), 2 cells" in said


def test_other_bits_of_the_same_kind_are_the_same_verdicts(made: Project, capsys: pytest.CaptureFixture[str]) -> None:
    candidate(made, "other", OTHER.replace("3.0000002", "3.0000005"))
    assert held(made) == 1
    said = capsys.readouterr().out
    assert "other: same verdicts: T=1 out, T=4 out" in said
    assert "good: same bits" in said
    assert held(made, "--grade", "verdicts") == 0


def test_a_pair_that_is_equal_now_is_different(made: Project, capsys: pytest.CaptureFixture[str]) -> None:
    candidate(made, "other", GOOD)
    assert held(made, "--grade", "verdicts") == 1
    assert "other: different: other order -> identical" in capsys.readouterr().out


def test_a_cell_without_a_result_is_different_with_its_reason(
    made: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate(made, "other", "import nowhere_to_be_found\n")
    assert held(made, "--grade", "verdicts") == 1
    assert "other: different: has no result here: unavailable: " in capsys.readouterr().out


def test_what_changed_in_the_environment_stands_beside_the_difference(
    made: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made.root / "baseline.json"
    data: dict[str, Any] = json.loads(path.read_text())
    data["bitmatrix"]["stacks"]["golden"]["distributions"]["numpy"] = "2.0.0"
    data["bitmatrix"]["digests"]["other"]["4"]["out"] = "0" * 64
    data["bitmatrix"]["device_model"] = "Another CPU"
    path.write_text(json.dumps(data))
    assert held(made) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("other: same verdicts: T=4 out"))
    assert lines[place + 1].startswith("  changed in its environment: numpy 2.0.0 -> ")
    assert any(line.startswith("changed for every cell: device model Another CPU -> ") for line in lines)


def test_a_run_that_is_there_is_held_without_running(made: Project) -> None:
    candidate(made, "other", OTHER.replace("3.0000002", "3.0000005"))
    assert held(made, "--run", str(made.latest())) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "another"}, "is of the op another, the matrix of scale"),
        ({"cases": [1, 4, 64]}, "has cases that this plan lacks (64)"),
        ({"results": {}}, "has no cell of this plan"),
    ],
)
def test_a_report_from_another_matrix_runs_nothing(
    made: Project, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    path = made.root / "baseline.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    before = made.latest()
    assert held(made) == 2
    assert message in capsys.readouterr().err
    assert made.latest() == before


def test_the_published_gpu_report_is_no_baseline_of_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    baseline = str(REPOSITORY / "baselines" / "b200_timestep_mlp.json")
    assert cli.main(["verify", baseline, "--device", "cpu", "--isolation", "host"]) == 2
    assert "was made on cuda, this is cpu" in capsys.readouterr().err


def test_published_reports_are_held_by_their_figures() -> None:
    b200, h200 = (report.load(REPOSITORY / "baselines" / f"{name}_timestep_mlp.json") for name in ("b200", "h200"))
    same = verify.verify(b200, b200)
    assert same.grade == "bits"
    assert not same.by_digest
    found = verify.verify(b200, h200)
    assert found.grade == "different"
    lines = list(found.lines())
    assert any(line.startswith("rl_kernel: different: has no result here: unavailable") for line in lines)
    plain = next(number for number, line in enumerate(lines) if line.startswith("diffusers[vllm]: same verdicts: vs "))
    assert "torch 2.13.0+cu130 -> 2.11.0+cu130" in lines[plain + 1]
    assert "changed for every cell: gpu NVIDIA B200 -> NVIDIA H200" in "\n".join(lines)
