"""A bisection finds the release that changes the bits, round those that don't resolve or run, and its answer is that of
trying every release."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import packages
import project
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from harness import bisect, cli, engine, lock
from harness.errors import BitmatrixError
from harness.files import sha256_file, sha256_json
from harness.lock import Pin

TOOL = "bitmatrix-tool"
CANDIDATE = """
import bitmatrix_tool
import numpy as np
def load(context):
    return lambda inputs: {"out": inputs["x"] * np.float32(bitmatrix_tool.FACTOR), "grads.x": inputs["g"]}
"""
"""A candidate whose bits are those of a package's release."""

OTHER = CANDIDATE.replace("bitmatrix_tool.FACTOR", "bitmatrix_tool.SECOND")


class Site:
    """A project whose stack has `bitmatrix-tool`, and a folder of that package's releases."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links, self.cache = folder / "links", cache
        self.links.mkdir()
        monkeypatch.setenv("PIP_FIND_LINKS", str(self.links))
        self.project = project.Project(folder / "project", {"good": CANDIDATE, "other": OTHER})
        self.committed = self.project.root / "images" / "locks" / "cpu" / "golden-x86_64-py3.11.txt"

    def release(self, version: str, factor: float | str, second: float | None = None, requires: str = "") -> Path:
        """A release with which the candidates multiply by these; a text is what the module holds instead."""
        text = factor if isinstance(factor, str) else f"FACTOR, SECOND = {factor}, {second or factor}\n"
        needs = [requires] if requires else []
        return packages.wheel(self.links, TOOL, version, {"bitmatrix_tool.py": text}, requires=needs)

    def commit(self, version: str, also: Mapping[str, str] = MappingProxyType({})) -> None:
        """Declare the stack with that release, and make its lock: the committed one of NumPy and its like beside it."""
        stacks: Any = self.project.cpu["stacks"]
        requirements = [*stacks["golden"]["requirements"], f"{TOOL}=={version}"]
        stacks["golden"] = {**stacks["golden"], "requirements": requirements, "resolver": "uv"}
        self.project.write()
        pins = list(lock.read(self.committed).pins.values())
        for name, pinned in {TOOL: version, **also}.items():
            wheel = self.links / f"{name.replace('-', '_')}-{pinned}-py3-none-any.whl"
            pins.append(Pin(name=name, version=pinned, hashes=(sha256_file(wheel),)))
        lock.write(self.committed, stack="golden", device="cpu", requirements=requirements, pins=pins)

    def bisect(self, versions: str, *options: str, package: str = TOOL, stack: str = "golden") -> int:
        asked = ["--stack", stack, "--package", f"{package}=={versions}"]
        places = ["--cache", str(self.cache)]
        return cli.main(["bisect", *self.project.options(*asked, *places, *options, isolation="venv")])

    def result(self) -> dict[str, Any]:
        """What the newest bisection kept."""
        folders = sorted((self.project.out / "bisect").glob("2*/"), key=lambda path: path.stat().st_mtime_ns)
        found: dict[str, Any] = json.loads((folders[-1] / bisect.FILE).read_text())
        return found


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests: the same release is the same environment."""
    return tmp_path_factory.mktemp("bisect-cache")


@pytest.fixture
def site(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, cache, monkeypatch)


BREAKS = "raise ImportError('this release is broken')\n"


def numbered(site: Site) -> None:
    """Releases: bits change with 1.5 and 1.6, a verdict with 1.6; 1.2 and 1.4.1 don't resolve, 1.4 doesn't import; 2.1
    never gives the same bits twice."""
    site.release("1.0", 3)
    site.release("1.1", 3)
    site.release("1.2", 3, requires="bitmatrix-nowhere")
    site.release("1.3", 3)
    site.release("1.4", BREAKS)
    site.release("1.4.1", 3, requires="bitmatrix-nowhere")
    site.release("1.5", 5)
    site.release("1.6", 5, 7)
    site.release("1.7rc1", 9)
    site.release("2.0", 5, 7)
    site.release("2.1", "import os\nFACTOR = SECOND = float(int.from_bytes(os.urandom(2)) + 1)\n")
    site.commit("2.0")


def test_it_finds_the_change_round_what_is_broken_and_leaves_the_committed_lock(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered(site)
    before = site.committed.read_bytes()
    assert site.bisect("1.0..2.0") == 0
    said, result = capsys.readouterr().out, site.result()
    assert result["releases"] == ["1.0", "1.1", "1.2", "1.3", "1.4", "1.4.1", "1.5", "1.6", "2.0"]
    assert result["outcome"]["before"] == "1.3"
    assert result["outcome"]["suspects"] == ["1.4", "1.4.1", "1.5"]
    assert result["outcome"]["reproduced"] is True
    assert f"the bits change after {TOOL} 1.3, with one of 1.4, 1.4.1, 1.5:" in said
    assert re.search(r"^1\.4 +- +- +skipped: good .*this release is broken", said, re.MULTILINE)
    assert f"{TOOL} 1.3 -> 1.5" in said
    tried = {trial["release"]: trial for trial in result["trials"]}
    assert tried["1.0"]["bits"] == tried["1.3"]["bits"] != tried["1.5"]["bits"]
    assert tried["2.0"]["lock_sha256"] == lock.read(site.committed).sha256
    assert site.committed.read_bytes() == before
    assert not (site.project.out / "latest").exists()

    # Each release is a run of its own, which holds from its files.
    (folder,) = (site.project.out / "bisect").glob("2*/")
    assert {path.name for path in folder.iterdir()} >= {"1.0", "1.3", "1.5", "2.0", bisect.FILE}
    options = ["--root", str(site.project.root), "--out", str(site.project.out)]
    assert cli.main(["audit", str(folder / "1.5"), *options]) == 0
    shutil.copyfile(folder / "1.5" / "report.json", folder / "1.3" / "report.json")
    assert cli.main(["audit", str(folder / "1.3"), *options]) == 1


def test_a_second_search_makes_and_runs_nothing_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    numbered(site)
    assert site.bisect("1.5..2.0") == 0
    first = site.result()
    made = {path: path.stat().st_mtime_ns for path in site.project.out.glob("cells/*/record.json")}
    capsys.readouterr()
    for path in site.links.glob("*-1.6-*"):
        path.unlink()  # nor is anything resolved again
    site.release("1.6", 5, 7)
    assert site.bisect("1.5..2.0") == 0
    assert {path: path.stat().st_mtime_ns for path in site.project.out.glob("cells/*/record.json")} == made
    said = capsys.readouterr().err
    assert "done, kept" in said
    assert not re.search(r"done, \d", said)
    assert site.result()["outcome"] == {**first["outcome"], "lines": site.result()["outcome"]["lines"]}
    assert first["outcome"]["suspects"] == ["1.6"]

    # Cleaning keeps the newest search and what it needs.
    assert cli.main(["clean", "--out", str(site.project.out)]) == 0
    assert len(list((site.project.out / "bisect").glob("2*"))) == 1
    assert {path: path.stat().st_mtime_ns for path in site.project.out.glob("cells/*/record.json")} == made


def test_ends_of_the_same_bits_are_said_to_be_so(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    numbered(site)
    assert site.bisect("1.0..1.3") == 0
    said = capsys.readouterr().out
    assert f"{TOOL} 1.0 and 1.3 give the same bits: no release between them is to blame" in said
    assert site.result()["outcome"]["release"] is None


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ("1.2..2.0", f"{TOOL} 1.2 can't be had, and nothing is held against it: doesn't resolve: "),
        ("1.0..1.4", f"{TOOL} 1.4 can't be had, and nothing is held against it: good "),
        ("1.0..1.9", f"{TOOL} has no release 1.9 in the indexes (releases in the range: 1.0, 1.1, "),
        ("7..8", f"{TOOL} has no release 7 nor 8 in the indexes (releases in the range: none; it has 1.0 to 2.1)"),
    ],
)
def test_an_end_that_can_not_be_had_is_bad_input(
    site: Site, capsys: pytest.CaptureFixture[str], versions: str, said: str
) -> None:
    numbered(site)
    assert site.bisect(versions) == 2
    assert said in capsys.readouterr().err
    assert not list((site.project.out / "bisect").glob("2*"))
    assert not list((site.project.out).rglob("*.tmp"))


def test_a_range_of_which_all_between_is_broken_names_all_of_it(site: Site) -> None:
    numbered(site)
    assert site.bisect("1.3..1.5") == 0
    assert site.result()["outcome"]["suspects"] == ["1.4", "1.4.1", "1.5"]


def test_a_verdict_changes_later_than_bits_do(site: Site) -> None:
    numbered(site)
    assert site.bisect("1.3..2.0", "--by", "verdicts") == 0
    outcome = site.result()["outcome"]
    assert (outcome["before"], outcome["suspects"]) == ("1.5", ["1.6"])
    assert any("other: different: identical -> " in line for line in outcome["lines"])


def test_verdicts_of_a_cell_that_is_held_against_none_are_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    numbered(site)
    candidates: Any = site.project.cpu["candidates"]
    del candidates["other"]
    site.project.write()
    assert site.bisect("1.0..2.0", "--by", "verdicts") == 2
    assert "none has a verdict to change: use --by bits" in capsys.readouterr().err


def test_other_packages_stay_as_locked_where_they_can_and_are_named_where_not(site: Site) -> None:
    aid = "bitmatrix-aid"
    for version in ("1.0", "2.0", "3.0"):
        packages.wheel(site.links, aid, version, {"bitmatrix_aid.py": ""})
    site.release("5.0", 3, requires=f"{aid}==1.0")
    site.release("5.1", 5, requires=aid)
    site.release("5.2", 5, requires=f"{aid}>=2")
    site.commit("5.2", also={aid: "2.0"})
    assert site.bisect("5.0..5.2") == 0
    tried = {trial["release"]: trial["beside"] for trial in site.result()["trials"]}
    assert tried == {"5.0": [f"{aid}: 2.0 -> 1.0"], "5.1": [], "5.2": []}


def test_bits_that_no_other_process_gives_again_are_no_answer(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    numbered(site)
    assert site.bisect("2.0..2.1") == 1
    assert f"the bits of {TOOL} 2.1 aren't reproduced by another process" in capsys.readouterr().out
    assert site.result()["outcome"]["reproduced"] is False


@pytest.mark.parametrize(
    ("package", "versions", "stack", "said"),
    [
        (TOOL, "2.0..1.0", "golden", "2.0 is newer than 1.0; write bitmatrix-tool==1.0..2.0"),
        (TOOL, "1.0..1.0", "golden", "one release alone"),
        (TOOL, "1.0", "golden", "must be a package and two of its releases"),
        (TOOL, "one..two", "golden", "must be a package and two of its releases"),
        ("bitmatrix-nowhere", "1.0..2.0", "golden", "stack golden has no package bitmatrix-nowhere"),
        (TOOL, "1.0..2.0", "silver", "--stack silver: the matrix has no such stack"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_before_anything_is_made(
    site: Site, capsys: pytest.CaptureFixture[str], package: str, versions: str, stack: str, said: str
) -> None:
    numbered(site)
    assert site.bisect(versions, package=package, stack=stack) == 2
    assert said in capsys.readouterr().err
    assert not (site.project.out / "bisect").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--isolation", "host"], "the host's interpreter has one release of each package"),
        (["--stack", "toolchain"], "name the one --stack that has the package"),
        (["--bundle", "some.tar"], "its releases come from an index, not from a bundle"),
    ],
)
def test_what_has_no_releases_to_choose_from_is_refused(
    site: Site, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    numbered(site)
    assert site.bisect("1.0..2.0", *options) == 2
    assert said in capsys.readouterr().err


def page(site: Site, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the site's one index a page that links to these files."""
    path = site.links / "page.html"
    path.write_text(f"<html><body>{text}</body></html>")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def file(version: str, yanked: str = "") -> str:
    name = f"bitmatrix_tool-{version}-py3-none-any.whl"
    return f'<a href="{name}" {yanked}>{name}</a>'


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [
        ("1.0..2.0", ["1.0", "1.1", "1.4", "2.0"]),
        ("1.0..1.5rc1", ["1.0", "1.1", "1.3.dev1", "1.4", "1.5rc1"]),
        ("1.2..2.0", ["1.2", "1.4", "2.0"]),
        ("1.0+cpu..1.9+cpu", ["1.0+cpu", "1.9+cpu"]),
    ],
)
def test_prereleases_and_yanked_ones_and_other_builds_are_left_out_unless_they_are_an_end(
    site: Site, monkeypatch: pytest.MonkeyPatch, versions: str, wanted: list[str]
) -> None:
    listed = [file("1.2", 'data-yanked="broken"'), file("2.0"), *map(file, ("1.0", "1.1", "1.3.dev1", "1.5rc1"))]
    # One of its two files is yanked: the release is not.
    listed += [file("1.4", "data-yanked"), '<a href="bitmatrix-tool-1.4.tar.gz">x</a>']
    listed += map(file, ("1.0%2Bcpu", "1.9%2Bcpu", "1.8%2Bother", "nonsense"))
    listed += ['<a href="another_tool-1.1.5-py3-none-any.whl">x</a>']
    page(site, "".join(listed), monkeypatch)
    said: list[str] = []
    found = bisect.releases(bisect.question(f"{TOOL}=={versions}"), None, said.append)
    assert [str(version) for version in found] == wanted
    assert not said


def test_an_index_that_does_not_answer_is_said_and_alone_is_an_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.release("1.0", 3)
    site.release("1.1", 3)
    said: list[str] = []
    asked = bisect.question(f"{TOOL}==1.0..1.1")
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert len(bisect.releases(asked, None, said.append)) == 2
    assert said == ["not asked for releases: 127.0.0.1 (ConnectionError)"]
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(BitmatrixError, match=r"the releases of bitmatrix-tool can't be listed: 127\.0\.0\.1"):
        bisect.releases(asked, None, said.append)


@given(middle=st.lists(st.sampled_from(["same", "other", "skipped"]), max_size=40))
def test_the_boundary_is_a_change_with_nothing_but_skipped_ones_within(middle: list[bisect.Same]) -> None:
    states: list[bisect.Same] = ["same", *middle, "other"]
    asked: list[int] = []

    def tell(number: int) -> bisect.Same:
        asked.append(number)
        return states[number]

    low, high = bisect.boundary(len(states), tell)
    assert states[low] == "same"
    assert states[high] == "other"
    assert set(states[low + 1 : high]) <= {"skipped"}
    assert len(set(asked)) == len(asked)
    told = [one for one in states if one != "skipped"]
    if told == sorted(told, reverse=True):  # one change alone
        assert low == max(number for number, one in enumerate(states) if one == "same")
        assert high == states.index("other")
    if "skipped" not in states:
        assert len(asked) <= max(1, len(states) - 1).bit_length()


@pytest.mark.parametrize(
    ("requirements", "wanted"),
    [
        (["numpy==2.4.6", "torch[a,b]>=2"], ["numpy==2.4.6", "torch[a,b]==2.1"]),
        (["Torch", "numpy"], ["Torch==2.1", "numpy"]),
        (["torch[b,a]==2.1"], ["torch[b,a]==2.1"]),
        (["numpy"], ["numpy", "torch==2.1"]),
    ],
)
def test_one_requirement_alone_is_replaced(requirements: list[str], wanted: list[str]) -> None:
    assert bisect.changed(requirements, "torch", Version("2.1")) == wanted


LOGSUMEXP = """
import numpy as np
from scipy.special import logsumexp, softmax
def load(context):
    def run(inputs):
        gradient = softmax(inputs["x"], axis=1) * inputs["g"][:, None]
        return {"out": logsumexp(inputs["x"], axis=1).astype(np.float32), "grads.x": gradient.astype(np.float32)}
    return run
"""

OP = """
from harness.cell.op import ROWS, Input, Op, Tensor
OP = Op(
    name="scale",
    inputs=(Input(name="x", shape=(ROWS, 256), stream=1), Input(name="g", shape=(ROWS,), stream=2)),
    outputs=(Tensor(name="out", shape=(ROWS,)),),
    gradients=("x",),
    upstream=("g",),
)
"""


@pytest.mark.docker
def test_the_release_of_scipy_that_changed_logsumexp_is_found_and_made_again_from_its_run(tmp_path: Path) -> None:
    made = project.Project(tmp_path / "project", {"logsumexp": LOGSUMEXP}, cases=(1, 64))
    (made.op / "op.py").write_text(OP)
    requirements = ["numpy==1.26.4", "safetensors==0.8.0", "scipy==1.15.1"]
    made.cpu["stacks"] = {"bisected": {"base": "debian12", "requirements": requirements}}
    made.cpu["candidates"] = {"logsumexp": {"stack": "bisected", "source": "scipy.special.logsumexp, FP32"}}
    made.cpu["toolchain"] = None
    made.matrix["report"]["libraries"] = {"scipy": "bisected"}  # type: ignore[index]
    made.write()
    try:
        assert cli.main(["lock", *made.options("--stack", "bisected")]) == 0
        asked = ["--stack", "bisected", "--package", "scipy==1.14.0..1.15.1"]
        assert cli.main(["bisect", *made.options(*asked)]) == 0
        (folder,) = (made.out / "bisect").glob("2*/")
        result = json.loads((folder / bisect.FILE).read_text())
        outcome, tried = result["outcome"], {trial["release"]: trial for trial in result["trials"]}
        assert (outcome["before"], outcome["suspects"], outcome["reproduced"]) == ("1.14.1", ["1.15.0"], True)

        # From nothing but what those two runs hold, and the kernels: the same bits.
        for release in ("1.14.1", "1.15.0"):
            run = folder / release
            again = project.Project(tmp_path / release, {"logsumexp": LOGSUMEXP}, cases=(1, 64))
            (again.op / "op.py").write_text(OP)
            shutil.copyfile(run / "matrix.yaml", again.root / "matrix.yaml")
            shutil.copytree(run / "locks" / "images", again.root / "images", dirs_exist_ok=True)
            assert cli.main(["matrix", *again.options()]) == 0
            report = json.loads((again.latest() / "report.json").read_text())
            assert sha256_json(report["bitmatrix"]["digests"]) == tried[release]["bits"]
    finally:
        for image in engine.client().images.list("bitmatrix/cpu-bisected"):
            engine.client().images.remove(str(image.id), force=True)
