"""What has no wheel is built from what was fetched and hashed alone, and the record says what was made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import packages
import pytest
from conftest import Site

from harness import build, engine, image, sdist, venv
from harness.base import BaseImage
from harness.build import Builds, Job
from harness.engine import Request
from harness.errors import BitmatrixError, Unavailable
from harness.files import sha256_file
from harness.lock import Lock
from harness.matrix import Build, Source, Stack
from harness.pipsite import find
from harness.workspace import REPOSITORY

# A build backend in the tree itself. It imports a locked build tool, calls nvcc with fast math, and tries the network.
BACKEND = """
import os, shutil, socket, subprocess, zipfile
import bitmatrix_probe

def build_wheel(folder, config_settings=None, metadata_directory=None):
    try:
        socket.create_connection(("127.0.0.1", int(open("port.txt").read())), timeout=5).close()
        network = True
    except OSError:
        network = False
    assert any(os.path.isfile(path + "/probe.h") for path in os.environ["CPATH"].split(":")), "cuDNN's headers"
    assert os.path.isfile(os.environ["CUDA_HOME"] + "/lib64/libprobe.so"), "a linker's name for cuDNN"
    said = subprocess.run(
        [os.environ["CUDA_HOME"] + "/bin/nvcc", "--use_fast_math", "-O3", "-use_fast_math", "a b.cu"],
        capture_output=True, text=True, check=True).stdout
    name = "bitmatrix_built-1.0"
    text = f"ANSWER, NETWORK, SAID = {bitmatrix_probe.ANSWER}, {network}, {said!r}\\n"
    with zipfile.ZipFile(f"{folder}/{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("bitmatrix_built.py", text)
        info = f"{name}.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: bitmatrix-built\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = ["bitmatrix-probe"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'
NVCC = '#!/bin/sh\nprintf "%s|" "$@"\n'
SHOWN = "import bitmatrix_built as b; print(b.ANSWER, b.NETWORK, b.SAID)"


class Project:
    """A package without a wheel, the same as a git repository, and the locks of both."""

    def __init__(self, folder: Path, port: str) -> None:
        self.links = folder / "links"
        files = {"pyproject.toml": PROJECT, "backend.py": BACKEND, "port.txt": port}
        self.archive = packages.archive(self.links, "bitmatrix-built", "1.0", files)
        probe = packages.wheel(self.links)
        toolkit = {
            "nvidia/cu13/bin/nvcc": NVCC,
            "nvidia/cudnn/lib/libprobe.so.9": "",
            "nvidia/cudnn/include/probe.h": "",
        }
        nvcc = packages.wheel(self.links, "fake-nvcc", "1.0", toolkit)
        self.other = packages.wheel(self.links, "bitmatrix-other", "1.0", {"bitmatrix_other.py": ""})
        self.lock = packages.lock_of(folder / "lock.txt", {"bitmatrix-built": ("1.0", self.archive)})
        self.lock_of_other = packages.lock_of(folder / "other.txt", {"bitmatrix-other": ("1.0", self.other)})
        tools = {"bitmatrix-probe": ("1.0", probe), "fake-nvcc": ("1.0", nvcc)}
        self.builds = Builds(lock=packages.lock_of(folder / "tools.txt", tools), from_source=("bitmatrix-built",))
        self.remote = folder / "remote"
        self.remote.mkdir()
        for name, text in files.items():
            (self.remote / name).write_text(text)
        git = ["git", "-C", str(self.remote), "-c", "user.name=t", "-c", "user.email=t@localhost"]
        for step in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "test"]):
            subprocess.run([*git, *step], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        self.commit = head.stdout.strip()

    def sources(self) -> Builds:
        common: dict[str, Any] = {"git": f"file://{self.remote}", "commit": self.commit}
        made = Source(name="built", kind="build", imports=["bitmatrix_built"], **common)
        return Builds(lock=self.builds.lock, sources=(made, Source(name="tree", kind="tree", **common)))


@pytest.fixture
def project(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    port = find().settings["index-url"].rpartition(":")[2].partition("/")[0]
    made = Project(tmp_path, port)
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.links))
    return made


def inside(name: str, code: str) -> str:
    request = Request(image=name, command=[image.PYTHON, "-c", code], purpose="test")
    with engine.container(request) as made:
        made.start()
        made.wait(timeout=60)
        return str(made.logs().decode())


@pytest.mark.docker
@pytest.mark.usefixtures("base_image")
def test_a_source_archive_is_built_without_a_network_and_its_wheel_is_on_record(site: Site, project: Project) -> None:
    made = site.image(project.lock, project.builds)
    assert inside(made.name, SHOWN) == "42 False -O3|a b.cu|\n", "built with its tools, no network and no fast math"
    (wheel,) = (site.cache / "built").glob("*/*.whl")
    assert made.made_from_source == {"wheels": {wheel.name: sha256_file(wheel)}, "nvcc": ["-O3"], "sources": {}}
    assert "ModuleNotFoundError" in inside(made.name, "import bitmatrix_probe"), "build tools stay out of the image"
    assert site.image(project.lock, project.builds) == made


@pytest.mark.docker
@pytest.mark.usefixtures("base_image")
def test_sources_of_a_commit_are_built_or_put_on_the_path_of_an_image(site: Site, project: Project) -> None:
    made = site.image(project.lock_of_other, project.sources())
    assert inside(made.name, SHOWN).startswith("42 False")
    where = "import bitmatrix_other, importlib.util as u; print(u.find_spec('backend').origin)"
    assert inside(made.name, where) == "/opt/stack/src/tree/backend.py\n"
    assert set(made.made_from_source["sources"]) == {"built", "tree"}
    assert made.made_from_source["sources"]["tree"]["commit"] == project.commit


def test_a_virtual_environment_holds_what_is_built_and_what_is_a_tree(site: Site, project: Project) -> None:
    made = site.venv(project.lock_of_other, project.sources())
    answer = subprocess.run([made.python, "-c", SHOWN], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("42 ")
    where = "import importlib.util as u; print(u.find_spec('backend').origin)"
    found = subprocess.run([made.python, "-c", where], capture_output=True, text=True, check=True).stdout
    assert found.strip().endswith("src/tree/backend.py")
    names = [name for name, _ in venv.installed(made.python)[1]]  # type: ignore[index]
    assert names == ["bitmatrix-built", "bitmatrix-other"]


def test_a_built_wheel_that_was_changed_is_built_again(site: Site, project: Project) -> None:
    first = site.venv(project.lock, project.builds)
    (wheel,) = (site.cache / "built").glob("*/*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"x")
    shutil.rmtree(first.python.parent.parent)
    again = site.venv(project.lock, project.builds)
    answer = subprocess.run([again.python, "-c", SHOWN], capture_output=True, text=True, check=True).stdout
    assert answer.startswith("42 ")
    assert again.made_from_source["wheels"][wheel.name] == sha256_file(wheel)


def test_a_source_that_installs_without_what_must_import_fails(site: Site, project: Project) -> None:
    builds = project.sources()
    missing = builds.sources[0].model_copy(update={"imports": ["bitmatrix_built._C"]})
    with pytest.raises(BitmatrixError, match=r"importing bitmatrix_built\._C failed .*No module named"):
        site.venv(project.lock_of_other, Builds(lock=builds.lock, sources=(missing,)))


def test_a_build_that_fails_says_why_in_its_own_words(site: Site, project: Project) -> None:
    builds = Builds(
        lock=packages.lock_of(project.links / "few.txt", {}),
        from_source=("bitmatrix-built",),
        environment={"CUDA_HOME": "/nowhere", "PATH": "/usr/bin:/bin"},
    )
    with pytest.raises(BitmatrixError, match=r"building from source failed ") as caught:
        site.venv(project.lock, builds)
    assert "No module named 'bitmatrix_probe'" in site.log.read_text()
    assert "there is no nvcc: add nvidia-cuda-nvcc to the stack's build.requirements" in str(caught.value)


def test_the_nvcc_of_a_base_is_called_without_fast_math_too(site: Site, project: Project, tmp_path: Path) -> None:
    for name, text in {"bin/nvcc": NVCC, "lib64/libprobe.so": "", "include/probe.h": ""}.items():
        path = tmp_path / "cuda" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    probe = {"bitmatrix-probe": ("1.0", project.links / packages.FILE)}
    builds = Builds(
        lock=packages.lock_of(tmp_path / "few.txt", probe),
        from_source=("bitmatrix-built",),
        environment={"CUDA_HOME": str(tmp_path / "cuda"), "CPATH": str(tmp_path / "cuda/include")},
    )
    made = site.venv(project.lock, builds)
    answer = subprocess.run([made.python, "-c", SHOWN], capture_output=True, text=True, check=True).stdout
    assert answer.endswith("-O3|a b.cu|\n")


def test_an_archive_with_another_hash_is_refused_by_name(site: Site, project: Project) -> None:
    project.archive.write_bytes(project.archive.read_bytes() + b"x")
    with pytest.raises(BitmatrixError, match=r"bitmatrix-built==1\.0: no index .* with the lock's hash"):
        site.venv(project.lock, project.builds)


def test_a_stub_is_named_with_the_index_that_it_would_download_from(site: Site, tmp_path: Path) -> None:
    stub = '[build-system]\nrequires = ["wheel-stub"]\nbuild-backend = "wheel_stub.buildapi"\n'
    stub += '[tool.wheel_stub]\nindex_url = "https://elsewhere.example/"\n'
    made = packages.archive(tmp_path / "stubs", "cuda-tile", "1.6.0rc5", {"pyproject.toml": stub})
    lock = packages.lock_of(tmp_path / "stub.txt", {"cuda-tile": ("1.6.0rc5", made)})
    where = find({**os.environ, "PIP_FIND_LINKS": str(made.parent)})
    with pytest.raises(Unavailable, match=r"cuda-tile==1\.6\.0rc5 is a stub: .* from https://elsewhere\.example/"):
        sdist.fetch(lock.pins["cuda-tile"], tmp_path, where, None)


def test_an_archive_is_found_in_an_index_over_tls(site: Site, tmp_path: Path) -> None:
    lock = packages.lock_of(tmp_path / "l.txt", {packages.NAME: ("1.0", site.wheel)})
    with pytest.raises(BitmatrixError, match="no index that this site reaches has a source archive") as caught:
        sdist.fetch(lock.pins[packages.NAME], tmp_path, find(), None)
    assert "SSL" not in str(caught.value), "it was reached: the wheel there is no source archive"


def test_a_package_without_a_wheel_is_named_with_the_remedy(site: Site, project: Project) -> None:
    with pytest.raises(BitmatrixError, match=r"has a wheel of bitmatrix-built .*name it in `build\.from_source`"):
        site.venv(project.lock)


def gpu_job(folder: Path) -> tuple[Job, Builds, Lock]:
    for name in ("lock.txt", "tools.txt"):
        (folder / name).write_text("")
    for name in ("wheels", "tool_wheels", "out", "tree"):
        (folder / name).mkdir()
    declared = Source(name="RL-Kernel", git="file:///x", commit="0" * 40, kind="build", gpu=True)
    job = Job(
        lock=folder / "lock.txt",
        wheels=folder / "wheels",
        build_lock=folder / "tools.txt",
        build_wheels=folder / "tool_wheels",
        sources=(folder / "tree",),
        environment={"MAX_JOBS": "4"},
        gpu=True,
        out=folder / "out",
    )
    empty = Lock(path=folder / "lock.txt", requirements=(), pins={}, sha256="", stated=None)
    return job, Builds(sources=(declared,)), empty


@pytest.mark.docker
def test_a_build_for_a_gpu_asks_the_engine_for_it_and_for_no_network(base_image: BaseImage, tmp_path: Path) -> None:
    job, builds, lock = gpu_job(tmp_path)
    recipe = REPOSITORY / "images"
    requests = [
        image.build_request(job, recipe=recipe, image=base_image.name),
        image.install_request(
            lock.path, builds, job.wheels, job.out, [], recipe=recipe, image=base_image.name
        ),
    ]  # fmt: skip
    for request in requests:
        with engine.container(request) as made:
            made.reload()
            asked: dict[str, Any] = made.attrs["HostConfig"]
        (gpu,) = asked["DeviceRequests"]
        assert (gpu["Count"], gpu["Capabilities"]) == (1, [["gpu"]])
        assert asked["NetworkMode"] == "none"
        assert asked["CapDrop"] == ["ALL"]
        writable = [mount["Target"] for mount in asked["Mounts"] if not mount.get("ReadOnly")]
        assert writable == (["/mnt/out"] if request.purpose == "build" else [])


def test_a_stack_built_for_a_gpu_is_another_for_another_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(name="RL-Kernel", git="file:///x", commit="0" * 40, kind="build", gpu=True)
    stack = Stack(base="b", requirements=["torch"], build=Build(requirements=["ninja"]), sources=[source])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="built for the GPU that it finds, and no NVIDIA GPU answers"):
        build.plan(stack, None)
    identities = []
    for capability in ("9.0", "10.0"):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho {capability}\n")
        program.chmod(0o755)
        made = build.plan(stack, None)
        assert made.capability == capability
        identities.append(json.dumps(made.identity(REPOSITORY / "images")))
    assert identities[0] != identities[1]
