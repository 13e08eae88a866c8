"""An audit needs a run's files alone, and no byte of them can be changed without its finding and naming the file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from project import GOOD, OTHER, Project

from harness import cli, engine, provenance, tensors
from harness.engine import Request
from harness.files import sha256_file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One real run, of this interpreter."""
    project = Project(tmp_path_factory.mktemp("audit"), {"good": GOOD, "other": OTHER})
    assert cli.main(["matrix", *project.options(isolation="host")]) == 0
    return project


@pytest.fixture
def run(made: Project, tmp_path: Path) -> Path:
    """A copy of its folder, as somebody would be handed it: other times, no hard links, nothing beside it."""
    return Path(shutil.copytree(made.latest(), tmp_path / made.latest().name))


def audit(run: Path, made: Project, *options: str) -> int:
    return cli.main(["audit", str(run), "--root", str(made.root), "--out", str(run.parent / "nothing"), *options])


def test_a_whole_run_holds_from_its_files_alone(run: Path, made: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(run, made) == 0
    said = capsys.readouterr().out
    assert "holds: 2 cells" in said
    assert sha256_file(run / "report.json") in said


def test_no_byte_of_a_run_changes_without_being_found_and_named(
    run: Path, made: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    names = {path.relative_to(run).as_posix() for path in files}
    assert {"run.json", "report.json", "report.md", "provenance.json", "matrix.yaml"} < names
    assert {"good/record.json", "good/log.txt", "good/case-4.safetensors"} < names
    for path in files:
        whole = path.read_bytes()
        for place in {0, 7, len(whole) // 3, len(whole) // 2, len(whole) - 1}:
            for flip in (1, 0x20):
                changed = bytearray(whole)
                changed[place] ^= flip
                path.write_bytes(changed)
                assert audit(run, made) == 1, (path, place, flip)
                name = path.relative_to(run).as_posix()
                assert name in capsys.readouterr().out, (path, place, flip)
        path.write_bytes(whole)
    assert audit(run, made) == 0


def cut(run: Path) -> str:
    os.truncate(run / "good" / "case-4.safetensors", 300)
    return "good/case-4.safetensors: was changed"


def reordered_header(run: Path) -> str:
    """The header's entries in another order: every tensor and its digest are as before."""
    path = run / "good" / "case-4.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    text = content[8 : 8 + size]
    header = json.loads(text)
    other = json.dumps(dict(reversed(header.items())), separators=(",", ":")).encode().ljust(size)
    assert len(other) == size
    assert other != text
    path.write_bytes(content[:8] + other + content[8 + size :])
    return "good/case-4.safetensors: was changed"


def removed(run: Path) -> str:
    (run / "other" / "case-1.safetensors").unlink()
    return "other/case-1.safetensors: is gone"


def added(run: Path) -> str:
    (run / "good" / "case-8.safetensors").write_bytes(b"x")
    return "good/case-8.safetensors: is no file of this run"


def linked(run: Path) -> str:
    path = run / "good" / "log.txt"
    path.rename(run.parent / "log.txt")
    path.symlink_to(run.parent / "log.txt")
    return "good/log.txt: is gone, or no regular file"


def piped(run: Path) -> str:
    (run / "good" / "case-4.safetensors").unlink()
    os.mkfifo(run / "good" / "case-4.safetensors")
    return "good/case-4.safetensors: is no regular file"


def piped_through_a_link(run: Path) -> str:
    (run / "report.json").unlink()
    os.mkfifo(run.parent / "pipe")
    (run / "report.json").symlink_to(run.parent / "pipe")
    return "report.json: is no regular file"


def swapped(run: Path) -> str:
    for name in ("case-1.safetensors", "case-4.safetensors", "record.json"):
        shutil.copyfile(run / "other" / name, run / "good" / name)
    return "good/record.json: it is of other"


def improved(run: Path) -> str:
    """The report says that two cells are equal which aren't, consistently with itself."""
    path = run / "report.json"
    data = json.loads(path.read_text())
    data["results"]["other"]["vs good"]["4"]["out"][0] = {"equal": True, "differ": 0, "numel": 32, "max_abs": 0.0}
    path.write_text(json.dumps(data, indent=2))
    return "report.json: results.other.vs good.4.out.0.equal: isn't what the captures give"


def reversioned(run: Path) -> str:
    path = run / "good" / "record.json"
    data = json.loads(path.read_text())
    data["environment"]["pinned"] = {"numpy": "1.0"}
    path.write_text(json.dumps(data, indent=2) + "\n")
    return "good/record.json: its environment isn't that of the run's stack golden"


def rekeyed(run: Path) -> str:
    path = run / "good" / "record.json"
    data = json.loads(path.read_text())
    data["identity"]["threads"] = 1
    path.write_text(json.dumps(data, indent=2) + "\n")
    return "good/record.json: its key isn't the hash of its identity"


def relocked(run: Path) -> str:
    (path,) = run.glob("locks/images/locks/cpu/golden-*")
    path.write_text(path.read_text().replace("numpy==2.4.6", "numpy==2.4.5"))
    return "isn't the lock of run.json"


def unproven(run: Path) -> str:
    (run / "provenance.json").unlink()
    return "provenance.json: is missing"


@pytest.mark.parametrize(
    "tamper",
    [
        cut,
        reordered_header,
        removed,
        added,
        linked,
        piped,
        piped_through_a_link,
        swapped,
        improved,
        reversioned,
        rekeyed,
        relocked,
        unproven,
    ],
)
def test_each_kind_of_tampering_is_named_in_words(
    run: Path, made: Project, capsys: pytest.CaptureFixture[str], tamper: Callable[[Path], str]
) -> None:
    wanted = tamper(run)
    assert audit(run, made) == 1
    assert wanted in capsys.readouterr().out


def test_tampering_with_the_statement_and_the_file_is_found_by_the_comparison_itself(
    run: Path, made: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor, its record and every digest of both are changed: the report no longer follows from the captures."""
    path = run / "other" / "case-4.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    refs = tensors.read_header(path)
    record = json.loads((run / "other" / "record.json").read_text())
    for name, facts in record["tensors"]["4"].items():
        facts["sha256"] = record["claims"]["tensors"]["4"][name]["sha256"] = tensors.sha256(refs[name])
    record["files"]["4"]["sha256"] = sha256_file(path)
    (run / "other" / "record.json").write_text(json.dumps(record, indent=2) + "\n")
    provenance.write(run)
    assert audit(run, made) == 1
    assert "report.json: results.other.vs good.4" in capsys.readouterr().out


def test_the_statement_is_in_totos_and_names_what_the_report_came_from(run: Path) -> None:
    text = (run / "provenance.json").read_text()
    parsed = json_format.Parse(text, statement_pb2.Statement())
    Statement(list(parsed.subject), parsed.predicate_type, json_format.MessageToDict(parsed.predicate)).validate()
    data = json.loads(text)
    assert data["_type"] == "https://in-toto.io/Statement/v1"
    assert data["subject"] == [{"name": "report.json", "digest": {"sha256": sha256_file(run / "report.json")}}]
    materials = {one["name"]: one["digest"] for one in data["predicate"]["buildDefinition"]["resolvedDependencies"]}
    lock = next(name for name in materials if name.startswith("images/locks/cpu/golden"))
    assert materials[lock] == {"sha256": sha256_file(run / "locks" / lock)}
    assert {"harness/cell", "kernels/scale", "input x at 4 rows"} < materials.keys()
    described = json.loads((run / "run.json").read_text())
    assert described["commit"] is None or materials["source"] == {"gitCommit": described["commit"]}


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_a_signature_of_the_statement_is_made_and_checked_as_documented(run: Path, made: Project) -> None:
    key, statement = run.parent / "key", run / "provenance.json"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", "bitmatrix", statement], check=True)
    (run.parent / "signers").write_text(f"me {(run.parent / 'key.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(run.parent / "signers"), "-I", "me", "-n", "bitmatrix"]
    verify += ["-s", f"{statement}.sig"]
    assert subprocess.run(verify, input=statement.read_bytes(), check=False).returncode == 0
    assert audit(run, made) == 0
    statement.write_text(statement.read_text().replace('"finishedOn"', '"finishedOn" '))
    assert subprocess.run(verify, input=statement.read_bytes(), check=False).returncode != 0
    assert audit(run, made) == 1


@pytest.mark.docker
def test_the_images_of_a_run_are_there_under_their_recorded_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, {"good": GOOD})
    recipe = project.root / "images" / "install.sh"
    recipe.write_text(f"{recipe.read_text()}# {tmp_path}\n")
    assert cli.main(["matrix", *project.options()]) == 0
    assert audit(project.latest(), project) == 0
    environment = json.loads((project.out / "stacks" / "cpu-golden-docker.json").read_text())["environment"]
    tag, image_id = environment["image"], environment["image_id"]
    with engine.container(Request(image=tag, purpose="tamper", command=["/bin/true"])) as container:
        engine.commit(container, tag, [])
    try:
        capsys.readouterr()
        assert audit(project.latest(), project) == 1
        assert f"stack golden: {tag} names sha256:" in capsys.readouterr().out
    finally:
        engine.client().images.remove(tag, force=True)
    assert engine.find_image(image_id) is None  # the new one stood on it, and took it with it
    assert audit(project.latest(), project) == 1
    assert f"the engine has no image {image_id}" in capsys.readouterr().out
    assert audit(project.latest(), project, "--no-images") == 0
