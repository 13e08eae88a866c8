"""The sessions: the whole matrix by one of them, side by side too, and one broken stack doesn't keep the others."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from project import GOOD, OTHER, Project, in_run

from harness import engine
from harness.workspace import REPOSITORY


def command(project: Project, *arguments: str) -> list[str]:
    shutil.copy(REPOSITORY / "noxfile.py", project.root / "noxfile.py")
    options = ["--root", str(project.root), "--out", str(project.out), "--device", "cpu"]
    return [sys.executable, "-m", "nox", "-f", str(project.root / "noxfile.py"), *arguments, "--", *options]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "NOX_DEFAULT_VENV_BACKEND": "none"}


def nox(project: Project, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    done = subprocess.run(
        [*command(project, *arguments), *options],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def statuses(project: Project) -> dict[str, str]:
    details: dict[str, Any] = json.loads((project.latest() / "report.json").read_text())["bitmatrix"]
    return {name: cell["status"] for name, cell in details["cells"].items()}


def two_stacks(tmp_path: Path) -> Project:
    """Two stacks with a cell each; the second's lock names a file that no index has."""
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})
    project.add_broken_stack()
    project.cpu["candidates"]["other"]["stack"] = "broken"  # type: ignore[index]
    project.write()
    return project


@pytest.mark.docker
@pytest.mark.parametrize("parallel", [(), ("-j", "2")])
def test_one_broken_stack_does_not_keep_the_others_from_the_table(tmp_path: Path, parallel: tuple[str, ...]) -> None:
    project = two_stacks(tmp_path)
    code, said = nox(project, *parallel, "-s", "matrix")
    assert code == 1
    assert "Traceback" not in said
    assert "running sequentially" not in said
    assert statuses(project) == {"good": "done", "other": "failed"}
    assert "stack broken: fetching the lock's packages failed" in said
    project.cpu["candidates"]["other"]["stack"] = "golden"  # type: ignore[index]
    project.write()
    code, said = nox(project, *parallel, "-s", "matrix")
    assert code == 0, said
    assert "good in stack golden: done, kept" in said
    assert statuses(project) == {"good": "done", "other": "done"}


@pytest.mark.docker
def test_options_narrow_every_session(tmp_path: Path) -> None:
    project = two_stacks(tmp_path)
    code, said = nox(project, "-s", "matrix", options=("--stack", "golden", "--case", "4"))
    assert code == 0, said
    assert statuses(project) == {"good": "done"}
    assert "broken (docker)" not in said


def test_bad_input_is_said_once_without_a_traceback_and_nothing_runs(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    for old, new in (("cases:", "csaes:"), ("format: 1", "format: [")):
        project.write()
        text = (project.root / "matrix.yaml").read_text()
        (project.root / "matrix.yaml").write_text(text.replace(old, new))
        code, said = nox(project, "-s", "matrix", options=("--isolation", "host"))
        assert code == 1
        assert "Traceback" not in said
        assert len(re.findall(r"matrix\.yaml:\d+: ", said)) >= 1
        assert not project.out.exists()


def test_the_list_names_every_session_with_a_line_of_what_it_does() -> None:
    listing = [sys.executable, "-m", "nox", "-f", str(REPOSITORY / "noxfile.py"), "-l"]
    done = subprocess.run(listing, stdout=subprocess.PIPE, text=True, check=True)
    sessions = dict(re.findall(r"^[*-] ([\w-]+)(?: \[.*?\])? -> (.*)$", done.stdout, re.MULTILINE))
    steps = {"matrix", "collect", "image-torch", "run-torch", "image-vllm", "inputs", "kernels", "plan"}
    upkeep = {"tests", "lint", "lock", "bench", "schema", "clean"}
    assert steps | upkeep <= sessions.keys()
    assert all(description.endswith(".") for description in sessions.values())


@pytest.mark.docker
@pytest.mark.parametrize("parallel", [(), ("-j", "2")])
def test_ctrl_c_through_nox_leaves_no_container_and_loses_nothing(tmp_path: Path, parallel: tuple[str, ...]) -> None:
    waits = f"waits_{uuid.uuid4().hex[:8]}"  # another test's cell may wait beside this one
    project = Project(tmp_path, {"good": GOOD, waits: in_run("time.sleep(600)")})
    process = subprocess.Popen(
        command(project, *parallel, "-s", "matrix"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    filters: dict[str, str | list[str] | bool] = {"label": f"{engine.LABEL}.cell={waits}"}
    while not engine.client().containers.list(filters=filters):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Traceback" not in said
    # Under -j nox kills its children after half a second: then the lifeline ends the cell.
    while engine.client().containers.list(filters=filters):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    engine.sweep()
    assert not engine.client().containers.list(all=True, filters=filters)
    assert len(list((project.out / "cells").glob("[0-9a-f]*"))) == 1
