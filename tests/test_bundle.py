"""A run comes from a bundle alone, and nothing of a bundle that was cut short or altered is used."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from project import GOOD, Project

from harness import cli, engine, pipsite

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Path, str]]:
    """A project with an image of its own, the bundle of it, and the image's name; the image itself is gone."""
    project = Project(tmp_path_factory.mktemp("bundle"), {"good": GOOD})
    recipe = project.root / "images" / "install.sh"
    recipe.write_text(f"{recipe.read_text()}# {project.root}\n")
    file = project.root / "bundle.tar"
    assert cli.main(["bundle", "--dirty", "--to", str(file), *project.options()]) == 0
    record = json.loads((project.out / "stacks" / "cpu-golden-docker.json").read_text())
    tag = record["environment"]["image"]
    yield project, file, tag
    if engine.find_image(tag):
        engine.client().images.remove(tag, force=True)


@pytest.fixture
def gone(packed: tuple[Project, Path, str]) -> str:
    if engine.find_image(packed[2]):
        engine.client().images.remove(packed[2], force=True)
    return packed[2]


def matrix(project: Project, file: Path, place: Path, *options: str) -> int:
    """A run from a bundle, on a host that has neither results nor a cache."""
    places = ["--root", str(project.root), "--out", str(place / "out"), "--cache", str(place / "cache")]
    return cli.main(["matrix", "--device", "cpu", "--isolation", "docker", "--bundle", str(file), *places, *options])


def test_a_run_from_a_bundle_needs_no_network_and_gives_the_same_bits(
    packed: tuple[Project, Path, str],
    gone: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    project, file, _ = packed

    def refused(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(pipsite, "find", refused)
    assert matrix(project, file, tmp_path, "--strict") in (0, 1)  # the inputs of this op aren't pinned
    assert f"loading {gone}" in capsys.readouterr().err
    details = json.loads((tmp_path / "out" / "latest" / "report.json").read_text())["bitmatrix"]
    assert details["cells"]["good"]["status"] == "done"
    # Its image is the one that was packed, and is on record as such.
    assert not [one for one in details["findings"] if one["about"] == "golden"]
    assert cli.main(["audit", "--root", str(project.root), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    # What is there isn't unpacked again.
    assert matrix(project, file, tmp_path) == 0
    assert "unpacking" not in capsys.readouterr().err


def test_a_stack_that_is_not_in_the_bundle_is_unavailable_and_not_fetched(
    packed: tuple[Project, Path, str], gone: str, tmp_path: Path
) -> None:
    project, file, _ = packed
    declared = json.loads(json.dumps(project.matrix))
    declared["devices"]["cpu"]["stacks"]["more"] = declared["devices"]["cpu"]["stacks"]["golden"]
    declared["devices"]["cpu"]["candidates"]["late"] = {"stack": "more", "source": "late"}
    other = tmp_path / "matrix.yaml"
    other.write_text(json.dumps(declared))
    (project.op / "candidates" / "late.py").write_text(GOOD)
    try:
        assert matrix(project, file, tmp_path, "--matrix", str(other)) == 2  # the bundle is of another matrix
    finally:
        (project.op / "candidates" / "late.py").unlink()
    assert gone == packed[2]
    assert engine.find_image(gone) is None


def members(file: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(file) as tar:
        return [(entry, (stream.read() if (stream := tar.extractfile(entry)) else b"")) for entry in tar]


def rewritten(file: Path, target: Path, change: dict[str, bytes | None], added: dict[str, bytes] | None = None) -> Path:
    with tarfile.open(target, "w:", format=tarfile.PAX_FORMAT) as tar:
        for entry, content in members(file):
            new = change.get(entry.name, content)
            if new is not None:
                entry.size = len(new)
                tar.addfile(entry, BytesIO(new))
        for name, content in (added or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, BytesIO(content))
    return target


def test_a_bundle_cut_short_or_altered_is_refused_and_nothing_of_it_used(
    packed: tuple[Project, Path, str], gone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, file, _ = packed
    names = [entry.name for entry, _ in members(file)]
    wheel = next(name for name in names if name.startswith("cache/wheelhouses/"))
    listing = next(content for entry, content in members(file) if entry.name == "bundle.json")
    whole = next(content for entry, content in members(file) if entry.name == wheel)
    flipped = bytes([whole[0] ^ 1]) + whole[1:]
    bad = tmp_path / "bad.tar"

    def cut() -> Path:
        bad.write_bytes(file.read_bytes())
        os.truncate(bad, file.stat().st_size * 2 // 3)
        return bad

    def no_tar() -> Path:
        bad.write_text("no tar")
        return bad

    cases: list[tuple[Callable[[], Path], str]] = [
        (cut, "cut short"),
        (lambda: rewritten(file, bad, {wheel: flipped}), f"{wheel} was altered"),
        (lambda: rewritten(file, bad, {wheel: None}), f"cut short: {wheel} is missing"),
        (lambda: rewritten(file, bad, {}, {"../escaped": b"x"}), "'../escaped' isn't listed"),
        (lambda: rewritten(file, bad, {"bundle.json": listing[:-9]}), "bundle.json: "),
        (lambda: rewritten(file, bad, {"bundle.json": None}), "is no bundle"),
        (no_tar, "is no bundle"),
    ]
    for make, message in cases:
        bad.unlink(missing_ok=True)
        assert matrix(project, make(), tmp_path) == 2, message
        assert message in capsys.readouterr().err
        assert engine.find_image(gone) is None
        assert not list((tmp_path / "cache").glob("wheelhouses/*"))
    assert not (tmp_path.parent / "escaped").exists()
    assert matrix(project, tmp_path / "nowhere.tar", tmp_path) == 2


def test_a_bundle_of_other_code_is_refused_with_what_differs(
    packed: tuple[Project, Path, str], gone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, file, _ = packed
    candidate = project.op / "candidates" / "good.py"
    candidate.write_text(f"{GOOD}# changed\n")
    try:
        assert matrix(project, file, tmp_path) == 2
    finally:
        candidate.write_text(GOOD)
    assert "doesn't fit this checkout, which has other kernels/scale" in capsys.readouterr().err
    assert engine.find_image(gone) is None
