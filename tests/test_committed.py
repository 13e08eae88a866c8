"""The committed matrix as its users meet it: in containers, and from the README on a machine with Python alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import cli, engine, environment, matrix, pipsite
from harness.base import BaseImage
from harness.engine import Mount, Request
from harness.workspace import REPOSITORY, Workspace, default_cache

pytestmark = pytest.mark.docker


def details(report: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = report["bitmatrix"]
    return found


def test_the_committed_cpu_matrix_runs_whole_and_shows_what_cpus_differ_in(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--isolation", "docker", "--no-measures", "--out", str(tmp_path)]
    assert cli.main(["matrix", *options]) == 0
    report = json.loads((tmp_path / "latest" / "report.json").read_text())
    cells = details(report)["cells"]
    assert [name for name, cell in cells.items() if cell["status"] == "done"] == [
        *(f"diffusers[{mode}]" for mode in ("plain", "mkl_cbwr", "mkl_sse42", "aten_default", "one_thread")),
        "det_linear",
        "det_linear_portable",
        "golden",
    ]
    # The truth is near every cell and is no cell: each rounds on its way.
    for name, result in report["results"].items():
        if name != "golden":
            case = result["vs golden"]["64"]
            assert 0 < case["out"][0]["max_abs"] < 1e-4, name
            assert not case["grads"]["w2"]["equal"]
    # On a CPU with more than SSE these change most tensors; a mode that did nothing would say so.
    assert cells["diffusers[aten_default]"]["note"] is None
    stacks = details(report)["stacks"]
    assert report["environment"]["torch"] == "2.13.0+cpu"
    assert report["environment"]["tf32"] is False
    assert stacks["torch"]["image_id"] != stacks["golden"]["image_id"]
    assert stacks["golden"]["distributions"] == {"numpy": "2.4.6", "safetensors": "0.8.0"}


def test_one_kernel_binary_returns_the_same_bits_in_two_unlike_images(tmp_path: Path) -> None:
    for name in ("kernels", "images"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    candidates = tmp_path / "kernels" / "timestep_mlp" / "candidates"
    shutil.copy(candidates / "det_linear.py", candidates / "det_linear_golden.py")
    matrix = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
    cpu = matrix["devices"]["cpu"]
    matrix["devices"] = {"cpu": cpu}
    matrix["report"] |= {"libraries": {}, "kernel": "det_linear"}
    matrix["cases"] = [1, 4, 64]
    one = cpu["candidates"]["det_linear"]
    cpu["candidates"] = {"det_linear": one, "det_linear_golden": {**one, "stack": "golden"}}
    cpu["references"] = ["det_linear"]
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    options = ["--root", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu", "--isolation", "docker"]
    assert cli.main(["matrix", *options, "--no-measures"]) == 0
    report = json.loads((tmp_path / "out" / "latest" / "report.json").read_text())
    assert details(report)["classes"]["whole"] == [["det_linear", "det_linear_golden"]]


def test_a_cells_dealings_with_torch_hold_in_the_real_stack(tmp_path: Path) -> None:
    """Overrides found by the dispatch table, threads, TF32 flags, bfloat16: checks that need torch, in its image."""
    workspace = Workspace(out=tmp_path, cache=default_cache())
    holds_in(workspace, "torch", "cell.torch_checks", tmp_path)


def test_the_triton_kernel_holds_under_tritons_interpreter(tmp_path: Path) -> None:
    """Without a GPU: in an image of torch and Triton whose lock is the tests' own."""
    shutil.copytree(REPOSITORY / "images", tmp_path / "images")
    name = "triton-x86_64-py3.11.txt"
    shutil.copy(REPOSITORY / "tests" / "golden" / name, tmp_path / "images" / "locks" / "cpu" / name)
    declared = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
    torch = declared["devices"]["cpu"]["stacks"]["torch"]
    requirements = ["torch==2.13.0+cpu", "triton==3.7.1", "numpy==2.4.6"]
    declared["devices"]["cpu"]["stacks"]["triton"] = {**torch, "requirements": requirements}
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(declared))
    workspace = Workspace(root=tmp_path, out=tmp_path, cache=default_cache())
    holds_in(workspace, "triton", "cell.triton_checks", tmp_path, TRITON_INTERPRET="1")


def holds_in(workspace: Workspace, stack: str, module: str, folder: Path, **variables: str) -> None:
    """Run a module of checks in the stack's image."""
    declared = matrix.load(workspace.root / "matrix.yaml", REPOSITORY / "kernels")
    made = environment.prepare(workspace, declared, "cpu", stack, "docker").environment
    assert made is not None
    assert made.image is not None
    request = Request(
        image=made.image,
        command=[made.python, "-P", "-s", "-B", "-m", module],
        purpose="test",
        mounts=tuple(Mount(REPOSITORY / part, f"/mnt/{part}") for part in ("harness", "kernels", "tests")),
        environment={"PYTHONPATH": "/mnt:/mnt/tests", "HOME": "/tmp", **variables},
        options={"network_mode": "none"},
    )
    log = folder / "log.txt"
    with engine.container(request) as container:
        ending = engine.run(container, log=log, seconds=300)
    assert ending.exit_code == 0, log.read_text()


def readme_commands() -> list[str]:
    """The lines of the README's first block of commands."""
    section = (REPOSITORY / "README.md").read_text().split("## Run it")[1]
    block: str = re.findall(r"```\n(.*?)```", section, re.DOTALL)[0]
    return block.splitlines()


def checkout(folder: Path) -> Path:
    """What a clone would hold: the tracked files, and those that git doesn't ignore."""
    listing = ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    archive = folder / "checkout.tar"
    with tarfile.open(archive, "w") as tar:
        for name in filter(None, names):
            if (REPOSITORY / name).is_file():
                tar.add(REPOSITORY / name, name)
    return archive


def test_the_readmes_commands_work_on_a_machine_with_python_alone(base_image: BaseImage, tmp_path: Path) -> None:
    commands = readme_commands()
    assert commands[-1] == "nox -s matrix"
    site = pipsite.find()
    (tmp_path / "pip.conf").write_text(site.configuration())
    (tmp_path / "out").mkdir()
    # As printed but for the measures: they take a minute a cell, and other tests take each of them.
    commands[-1] += " -- --no-measures"
    script = "\n".join(
        ["set -e", "mkdir /root/bitmatrix", "cd /root/bitmatrix", "tar xf /mnt/checkout.tar", *commands,
         "cp -rL out/latest /mnt/out/run"]
    )  # fmt: skip
    request = Request(
        image=base_image.name,
        command=["/bin/sh", "-c", script],
        purpose="test",
        mounts=(
            Mount(checkout(tmp_path), "/mnt/checkout.tar"),
            Mount(tmp_path / "pip.conf", "/mnt/pip.conf"),
            Mount(tmp_path / "out", "/mnt/out", writable=True),
            *(Mount(path, str(path)) for path in site.paths),
        ),
        environment={"PIP_CONFIG_FILE": "/mnt/pip.conf", "HOME": "/root", **site.proxies},
        options={"network_mode": "host"},
    )
    log = tmp_path / "log.txt"
    with engine.container(request) as made:
        ending = engine.run(made, log=log, seconds=1200)
    assert ending.exit_code == 0, log.read_text()[-5000:]
    report = json.loads((tmp_path / "out" / "run" / "report.json").read_text())
    assert details(report)["isolation"] == "venv"
    assert {cell["status"] for cell in details(report)["cells"].values()} == {"done"}
    assert len(report["results"]) == 8
