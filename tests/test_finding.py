"""What ran is held against what was pinned: a shadowed wheel, an extra package, a dirty tree, a retagged image show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from project import GOOD, Project

from harness import cli, engine, rundir
from harness.engine import Request

docker = pytest.mark.docker

IMPORTS = "import safetensors\n" + GOOD


def own_stack(folder: Path, **candidates: str) -> Project:
    """A project whose stack has an image of its own: its recipe is another, by a comment."""
    project = Project(folder, candidates or {"good": IMPORTS})
    recipe = project.root / "images" / "install.sh"
    recipe.write_text(f"{recipe.read_text()}# {folder}\n")
    return project


def findings(project: Project) -> list[dict[str, str]]:
    details: dict[str, Any] = json.loads((project.latest() / "report.json").read_text())["bitmatrix"]
    return list(details["findings"])


def about(project: Project, subject: str) -> list[tuple[str, str]]:
    return [(found["severity"], found["message"]) for found in findings(project) if found["about"] == subject]


TAMPER = """
set -eu
cd /opt/stack/lib/python3.11/site-packages
mkdir -p /opt/elsewhere extra-1.0.dist-info
cp -R safetensors /opt/elsewhere/
printf 'import sys; sys.path.insert(0, "/opt/elsewhere")\\n' >shadow.pth
printf 'Metadata-Version: 2.1\\nName: extra\\nVersion: 1.0\\n' >extra-1.0.dist-info/METADATA
"""


@docker
def test_an_image_rebuilt_under_its_tag_is_found_with_all_that_it_shadows_and_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = own_stack(tmp_path)
    options = project.options("--cache", str(tmp_path / "cache"))
    assert cli.main(["matrix", *options]) == 0
    assert not [message for severity, message in about(project, "golden")]
    tag = json.loads((project.out / "stacks" / "cpu-golden-docker.json").read_text())["environment"]["image"]
    try:
        request = Request(image=tag, purpose="tamper", command=["/bin/sh", "-c", TAMPER])
        with engine.container(request) as made:
            assert engine.run(made, log=tmp_path / "log.txt", seconds=60).exit_code == 0, (
                tmp_path / "log.txt"
            ).read_text()
            engine.commit(made, tag, [])
        assert cli.main(["matrix", *options]) == 0
        found = about(project, "golden")
        where = "/opt/elsewhere/safetensors/__init__.py"
        assert ("error", "extra 1.0 is installed, and its lock has no such package") in found
        assert ("error", f"safetensors was imported from {where}, which is outside of the stack") in found
        assert any(
            "names another image than the one that was made here from the lock" in message for _, message in found
        )
        assert "| error | `golden` |" in (project.latest() / "report.md").read_text()
        capsys.readouterr()
        assert cli.main(["matrix", "--strict", *options]) == 1
        assert "--strict: error: golden: extra 1.0 is installed" in capsys.readouterr().err
    finally:
        engine.client().images.remove(tag, force=True)


@docker
def test_an_image_that_was_only_tagged_is_of_no_lock(tmp_path: Path) -> None:
    project = own_stack(tmp_path)
    options = project.options("--cache", str(tmp_path / "cache"))
    assert cli.main(["image", "golden", *options]) == 0
    tag = json.loads((project.out / "stacks" / "cpu-golden-docker.json").read_text())["environment"]["image"]
    request = Request(image=tag, purpose="tamper", command=["/bin/true"])
    try:
        with engine.container(request) as made:
            engine.commit(made, tag, ["LABEL io.bitmatrix.lock=0123456789abcdef"])
        assert cli.main(["matrix", *options]) == 0
        assert any("is labelled as of lock 0123456789ab" in message for _, message in about(project, "golden"))
    finally:
        engine.client().images.remove(tag, force=True)


def test_a_tree_that_differs_from_its_commit_is_a_warning_that_names_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, {"good": GOOD})
    options = project.options(isolation="host")
    monkeypatch.setattr(rundir, "_source", lambda: ("0" * 40, True, ["M harness/run.py", "?? kernels/x.py"]))
    assert cli.main(["matrix", *options]) == 0
    message = f"what ran differs from commit {'0' * 40}: M harness/run.py, ?? kernels/x.py"
    assert ("warning", message) in about(project, "source")
    assert cli.main(["matrix", "--strict", *options]) == 1


def test_a_clock_that_ran_backwards_is_a_warning_and_loses_nothing(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    options = project.options(isolation="host")
    assert cli.main(["matrix", *options]) == 0
    (record,) = project.out.glob("cells/*/record.json")
    data = json.loads(record.read_text())
    record.unlink()  # a hard link of the run's own
    record.write_text(json.dumps({**data, "started": "2999-01-01T00:00:00+00:00"}))
    assert cli.main(["matrix", *options]) == 0
    assert any("the clock ran backwards" in message for _, message in about(project, "good"))
    # Nothing of it was tampered with, and its audit says so.
    assert cli.main(["audit", str(project.latest()), *project.options()[:4]]) == 0
    # Runs are named by the clock: the run that out/latest names is kept, whatever its name sorts as.
    latest = project.latest()
    (project.out / "29990101T000000Z-cpu").mkdir()
    (project.out / "29990101T000000Z-cpu" / "run.json").write_text((latest / "run.json").read_text())
    assert cli.main(["clean", "--out", str(project.out)]) == 0
    assert latest.is_dir()
    assert project.latest() == latest


def test_a_lock_changed_since_the_stack_was_made_is_an_error(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    options = project.options(isolation="host")
    assert cli.main(["matrix", *options]) == 0
    path = project.root / "images" / "locks" / "cpu" / "golden-x86_64-py3.11.txt"
    path.write_text(path.read_text() + "# another\n")
    assert cli.main(["collect", *options]) == 0
    assert any("ran from another images/locks/cpu/golden" in message for _, message in about(project, "golden"))
