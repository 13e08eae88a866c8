"""Pinned results: a candidate that returns other bits than those that the op pins is on a broken host, and fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from project import GOOD, OTHER, Project

from harness import cli, results
from harness.workspace import REPOSITORY


@pytest.fixture
def pinned(tmp_path: Path) -> Project:
    """A project whose inputs are pinned, and what `good` returned."""
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})
    assert cli.main(["inputs", *project.options("--pin", isolation="host")]) == 0
    assert run(project) == 0
    assert held(project, "--pin", "good") == 0
    return project


def run(project: Project, *options: str) -> int:
    return cli.main(["matrix", *project.options(*options, isolation="host")])


def held(project: Project, *options: str) -> int:
    return cli.main(["results", "--root", str(project.root), "--out", str(project.out), *options])


def good(project: Project) -> tuple[str, str]:
    cell = json.loads((project.latest() / "report.json").read_text())["bitmatrix"]["cells"]["good"]
    return cell["status"], cell["reason"]


def test_a_cell_that_returns_the_pinned_bits_is_done(pinned: Project) -> None:
    assert run(pinned, "--fresh") == 0
    assert held(pinned) == 0


def test_a_cell_that_returns_other_bits_than_the_pinned_ones_fails_and_keeps_them(pinned: Project) -> None:
    (pinned.op / "candidates" / "good.py").write_text(OTHER)
    assert run(pinned) == 1
    status, reason = good(pinned)
    assert status == "failed"
    assert "other bits than scale/results.json pins (T=1 out, T=4 out)" in reason
    assert list((pinned.out / "attempts").glob("*/case-4.safetensors"))


def test_a_kept_capture_is_held_against_pins_that_came_later(pinned: Project) -> None:
    path = pinned.op / results.FILE
    pins = json.loads(path.read_text())
    pins["good"]["4"]["grads.x"] = "0" * 64
    path.write_text(json.dumps(pins))
    assert run(pinned) == 1
    assert "(T=4 d x)" in good(pinned)[1]


def test_inputs_that_are_not_the_pinned_ones_are_held_against_nothing(pinned: Project) -> None:
    (pinned.op / "inputs.json").unlink()
    (pinned.op / "candidates" / "good.py").write_text(OTHER)
    assert run(pinned) == 0


def test_a_run_is_held_against_pins_by_hand(pinned: Project, capsys: pytest.CaptureFixture[str]) -> None:
    path = pinned.op / results.FILE
    pins = json.loads(path.read_text())
    pins["good"]["1"]["out"] = "0" * 64
    path.write_text(json.dumps(pins))
    assert held(pinned) == 1
    assert "good: not as pinned: T=1 out" in capsys.readouterr().out
    assert held(pinned, "--pin", "nobody") == 2
    assert "no done cell of nobody (known: good, other)" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", '{"good": {"1": ["out"]}}', "{", '{"good": {"1": {"out": 1}}}'])
def test_pins_that_are_none_are_refused_in_words(
    pinned: Project, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (pinned.op / results.FILE).write_text(content)
    assert run(pinned) == 2
    assert str(pinned.op / results.FILE) in capsys.readouterr().err


def test_the_portable_kernels_results_are_pinned_for_every_published_case() -> None:
    found = results.pinned(REPOSITORY / "kernels" / "timestep_mlp")["det_linear_portable"]
    assert list(found) == ["1", "4", "64", "2048"]
    assert all(len(tensors) == 6 for tensors in found.values())
