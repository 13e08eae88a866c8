"""Locks are resolved for real through the site's own index, one stack's failure leaves the others, and a pin that can't
be resolved is said to be so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import packages
import project
import pytest
from conftest import Site

from harness import cli, engine, environment, lock, matrix
from harness.base import BaseImage
from harness.files import sha256_file
from harness.workspace import Workspace


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> project.Project:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    project_ = project.Project(tmp_path / "project", {"good": project.GOOD})
    shutil.rmtree(project_.root / "images" / "locks")
    return project_


def stacks(project_: project.Project, **declared: object) -> None:
    project_.cpu["stacks"] = declared
    project_.cpu["candidates"] = {"good": {"stack": next(iter(declared)), "source": "good"}}
    project_.cpu["toolchain"] = None
    project_.matrix["report"]["libraries"] = {}  # type: ignore[index]
    project_.matrix["bases"]["debian12"]["python"] = "3.12"  # type: ignore[index]
    project_.write()


PROBE = f"{packages.NAME}=={packages.VERSION}"
BY_UV = {"base": "debian12", "resolver": "uv"}


def test_uv_resolves_for_a_python_that_is_not_here_through_the_sites_own_index(
    site: Site, made: project.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks(made, probe={**BY_UV, "requirements": [PROBE]})
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    assert cli.main(["lock", *options]) == 0
    (path,) = (made.root / "images" / "locks" / "cpu").glob("probe-*-py3.12.txt")
    written = lock.read(path)
    assert written.versions() == {packages.NAME: packages.VERSION}
    assert written.requirements == (PROBE,)
    assert path.read_text().startswith("# Made by: nox -s lock -- --device cpu --stack probe\n")
    assert f"{packages.NAME}: absent -> 1.0" in capsys.readouterr().out


def test_build_tools_are_locked_beside_the_stack_in_its_versions(
    site: Site, made: project.Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1.0", "2.0"):
        packages.wheel(site.folder / "links", "bitmatrix-tool", version, {"bitmatrix_tool.py": ""})
    monkeypatch.setenv("PIP_FIND_LINKS", str(site.folder / "links"))
    build = {"requirements": ["bitmatrix-tool", PROBE]}
    stacks(made, probe={**BY_UV, "requirements": ["bitmatrix-tool<2"], "build": build})
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    assert cli.main(["lock", *options]) == 0
    (path,) = (made.root / "images" / "locks" / "cpu").glob("*-build.txt")
    assert lock.read(path).versions() == {"bitmatrix-tool": "1.0", packages.NAME: "1.0"}
    declared = matrix.load(made.root / "matrix.yaml", made.root / "kernels")
    environment.check_locks(Workspace(root=made.root, cache=site.cache), declared, "cpu")


def test_a_stack_that_does_not_resolve_leaves_the_others_and_its_old_lock(
    site: Site, made: project.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {**BY_UV, "requirements": [f"{packages.NAME}==7"]}
    stacks(made, bad=bad, good={**BY_UV, "requirements": [PROBE]})
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    assert cli.main(["lock", *options]) == 1
    said = capsys.readouterr().err
    assert "stack bad for cpu is not resolved: resolving bad failed" in said
    assert "not resolved, and left as they were: cpu/bad" in said
    assert [path.name.split("-")[0] for path in (made.root / "images/locks/cpu").iterdir()] == ["good"]


def test_what_a_lock_would_change_is_shown_before_it_is_written(
    site: Site, made: project.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks(made, probe={**BY_UV, "requirements": [PROBE]})
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    assert cli.main(["lock", "--dry-run", *options]) == 0
    assert f"{packages.NAME}: absent -> 1.0" in capsys.readouterr().out
    assert not list((made.root / "images").rglob("probe-*"))


def test_a_lock_is_proved_by_resolving_it_with_its_own_pins(
    site: Site, made: project.Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    links = site.folder / "links"
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    tool = packages.wheel(links, "bitmatrix-tool", "1.0", {"bitmatrix_tool.py": ""})
    top = packages.wheel(links, "bitmatrix-top", "1.0", {}, requires=["bitmatrix-tool"])
    stacks(made, probe={**BY_UV, "requirements": ["bitmatrix-top==1.0"]})
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    check = ["lock", "--check", *options]
    assert cli.main(["lock", *options]) == 0
    (path,) = (made.root / "images" / "locks" / "cpu").glob("probe-*-py3.12.txt")
    # A newer release doesn't make a lock wrong.
    packages.wheel(links, "bitmatrix-tool", "2.0", {"bitmatrix_tool.py": ""})
    assert cli.main(check) == 0
    hashes = {"bitmatrix-top": sha256_file(top), "bitmatrix-tool": sha256_file(tool)}

    def rewritten(**versions: str) -> None:
        pins = [
            lock.Pin(
                name=name.replace("_", "-"), version=version, hashes=(hashes.get(name.replace("_", "-"), "0" * 64),)
            )
            for name, version in versions.items()
        ]
        lock.write(path, stack="probe", device="cpu", requirements=["bitmatrix-top==1.0"], pins=pins)

    for versions, said in (
        ({"bitmatrix_top": "1.0"}, "lacks bitmatrix-tool, which its requirements bring"),
        ({"bitmatrix_top": "1.0", "bitmatrix_tool": "3.0"}, "doesn't resolve with its own pins"),
        (
            {"bitmatrix_top": "1.0", "bitmatrix_tool": "2.0"},
            "no index has bitmatrix-tool 2.0 with a hash",
        ),
        (
            {"bitmatrix_top": "1.0", "bitmatrix_tool": "1.0", packages.NAME.replace("-", "_"): "1.0"},
            f"pins {packages.NAME}, which no requirement brings",
        ),
    ):
        rewritten(**versions)
        assert cli.main(check) == 1, versions
        assert said in capsys.readouterr().out
    path.write_text(path.read_text().replace("bitmatrix-top==1.0 \\", "bitmatrix-top==1.1 \\"))
    assert cli.main(check) == 2
    assert "was edited after it was made" in capsys.readouterr().out


def test_a_matrix_whose_requirements_and_locks_disagree_does_not_run(
    site: Site, made: project.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks(made, probe={**BY_UV, "requirements": [PROBE]})
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    assert cli.main(["lock", *options]) == 0
    stacks(made, probe={**BY_UV, "requirements": [f"{packages.NAME}>=2"]})
    for command in ("plan", "image", "run", "matrix"):
        assert cli.main([command, "--device", "cpu", *options]) == 2, command
        assert f"pins {packages.NAME} 1.0, the matrix wants {packages.NAME}>=2" in capsys.readouterr().err


def test_a_package_without_a_wheel_is_named_when_a_lock_is_made(
    site: Site, made: project.Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    information = "Metadata-Version: 2.2\nName: bitmatrix-sources\nVersion: 1.0\n"
    files = {"PKG-INFO": information, "pyproject.toml": "[build-system]\nrequires = []\n"}
    packages.archive(site.folder / "links", "bitmatrix-sources", "1.0", files)
    monkeypatch.setenv("PIP_FIND_LINKS", str(site.folder / "links"))
    stack = {**BY_UV, "requirements": ["bitmatrix-sources==1.0"]}
    stacks(made, probe=stack)
    options = ["--root", str(made.root), "--out", str(made.out), "--cache", str(site.cache), "--isolation", "venv"]
    assert cli.main(["lock", *options]) == 1
    assert "bitmatrix-sources has no wheel that fits in any index" in capsys.readouterr().err
    stacks(made, probe={**stack, "build": {"requirements": [PROBE], "from_source": ["bitmatrix-sources"]}})
    assert cli.main(["lock", *options]) == 0


@pytest.mark.docker
@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="needs Debian's docker-registry to ask")
def test_a_published_image_runs_by_the_digest_that_its_registry_gave(
    base_image: BaseImage, registry: str, made: project.Project, tmp_path: Path
) -> None:
    client, name = engine.client(), f"{registry}/published"
    client.images.get(base_image.name).tag(name, "v1")
    client.images.push(name, "v1")
    client.images.remove(f"{name}:v1")
    stacks(made, published={"tag": f"{name}:v1", "python": "/usr/bin/python3"})
    workspace = Workspace(root=made.root, out=made.out, cache=tmp_path)
    declared = matrix.load(made.root / "matrix.yaml", made.root / "kernels")
    before = environment.prepare(workspace, declared, "cpu", "published", "docker")
    assert before.status == "unavailable"
    assert "nox -s lock -- --device cpu --stack published" in str(before.reason)
    assert cli.main(["lock", "--root", str(made.root), "--out", str(made.out), "--isolation", "venv"]) == 0
    try:
        after = environment.prepare(workspace, declared, "cpu", "published", "docker").environment
        assert after is not None
        assert after.python == "/usr/bin/python3"
        assert after.image == after.base
        assert str(after.image).startswith(f"{name}@sha256:")
        assert after.image_id == base_image.image_id
        assert after.image_environment == dict(
            item.split("=", 1) for item in client.images.get(base_image.name).attrs["Config"].get("Env") or []
        )
        assert environment.prepare(workspace, declared, "cpu", "published", "venv").status == "unavailable"
    finally:
        for left in client.images.list(name):
            client.images.remove(left.attrs["RepoDigests"][0], force=False)


@pytest.mark.docker
def test_a_tag_whose_registry_is_away_is_unresolved_in_the_lock_and_in_the_run(
    made: project.Project, capsys: pytest.CaptureFixture[str]
) -> None:
    stacks(made, published={"tag": "localhost:9/nothing:v1", "python": "/usr/bin/python3"})
    assert cli.main(["lock", "--root", str(made.root), "--out", str(made.out), "--isolation", "venv"]) == 1
    assert "asking the registry for the digest of localhost:9/nothing:v1" in capsys.readouterr().err
    assert cli.main(["matrix", *made.options()]) == 1
    report = json.loads((made.latest() / "report.json").read_text())
    cell = report["bitmatrix"]["cells"]["good"]
    assert cell["status"] == "unavailable"
    assert "the digest of localhost:9/nothing:v1 is not recorded" in cell["reason"]
