"""What tests share: a small matrix, and the engine where one answers."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import browser
import packages
import pytest
from hypothesis import settings

from harness import base, engine, gpu, image, matrix, pipsite, venv
from harness.base import BaseImage
from harness.build import Builds
from harness.files import sha256_file
from harness.image import StackImage
from harness.lock import Lock
from harness.venv import StackVenv
from harness.workspace import REPOSITORY, default_cache


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-docker", action="store_true", help="fail, not skip, when no Docker engine answers")
    parser.addoption("--require-browser", action="store_true", help="fail, not skip, when there is no Chromium")


def pytest_configure() -> None:
    # A shell starts what runs in its background with SIGINT ignored, and so would be every process of these tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Shared machines stall: how long an example took says nothing about it.
    settings.register_profile("bitmatrix", deadline=None)
    settings.load_profile("bitmatrix")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with real containers run where an engine answers; under --require-docker its absence is an error.

    Tests on a GPU run where NVIDIA's driver has one, those in a browser where Chromium is.
    """
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
    _needed(config, items, "browser", "--require-browser", "no Chromium is installed", lambda: browser.PROGRAM)
    _needed(config, items, "docker", "--require-docker", "no Docker engine answers", engine.answers)


def _needed(
    config: pytest.Config, items: list[pytest.Item], marker: str, option: str, lacking: str, has: Callable[[], object]
) -> None:
    marked = [item for item in items if item.get_closest_marker(marker)]
    if not marked or has():
        return
    if config.getoption(option):
        raise pytest.UsageError(f"{option}: {lacking}")
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=lacking))


def _has_gpu() -> bool:
    try:
        return bool(gpu.every())
    except gpu.NoDriver:
        return False


SMALL_MATRIX = """\
format: 1
op: timestep_mlp
cases: [1, 4]
report:
  kind: h3_bitwise_reuse
  rfc: "RL-Align/RL-Kernel#420"
  libraries: {torch: torch}
bases:
  debian12:
    python: "3.11"
    debootstrap:
      suite: bookworm
      mirror: http://deb.debian.org/debian
      packages: [python3, python3-pip, python3-venv]
devices:
  cpu:
    threads: 2
    environment: {OMP_NUM_THREADS: "2"}
    stacks:
      torch:
        base: debian12
        requirements: ["torch==2.13.0+cpu"]
      golden:
        base: debian12
        requirements: ["numpy==2.4.6"]
    modes:
      plain: {stack: torch}
      one_thread: {stack: torch, threads: 1, environment: {OMP_NUM_THREADS: "1"}}
    candidates:
      diffusers: {source: the real one, modes: [plain, one_thread]}
      golden: {source: the truth, stack: golden}
    references: ["diffusers[plain]", golden]
"""


@pytest.fixture
def matrix_file(tmp_path: Path) -> Callable[..., Path]:
    """Write the small matrix with some of its text replaced; returns the file."""

    def write(*replacements: tuple[str, str]) -> Path:
        text = SMALL_MATRIX
        for old, new in replacements:
            assert text.count(old) >= 1, f"the small matrix has no {old!r}"
            text = text.replace(old, new, 1)
        path = tmp_path / "matrix.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def base_image(tmp_path_factory: pytest.TempPathFactory) -> BaseImage:
    """The committed base, made as a user's run makes it; the engine keeps it between test runs."""
    declared = matrix.load(REPOSITORY / "matrix.yaml", REPOSITORY / "kernels").bases["debian12"]
    return base.ensure("debian12", declared, cache=default_cache(), log=tmp_path_factory.mktemp("base") / "log.txt")


@pytest.fixture(scope="session")
def kernels() -> Path:
    return REPOSITORY / "kernels"


NOTHING = Builds()


class Site:
    """A site with an index of its own, behind a certificate authority that nobody else knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.log = folder / "log.txt"
        self.wheel = packages.wheel(folder / "files")
        self.authority, self.server = packages.certificates(folder / "tls")
        self.base = matrix.load(REPOSITORY / "matrix.yaml", REPOSITORY / "kernels").bases["debian12"]

    def lock(self, digest: str | None = None) -> Lock:
        return packages.locked(self.folder / "lock.txt", digest or sha256_file(self.wheel))

    def image(self, lock: Lock, builds: Builds = NOTHING) -> StackImage:
        return image.ensure(
            "test-probe",
            lock,
            builds,
            base_name="debian12",
            base=self.base,
            index=None,
            recipe=REPOSITORY / "images",
            cache=self.cache,
            log=self.log,
        )

    def venv(self, lock: Lock, builds: Builds = NOTHING, python: str = "3.11") -> StackVenv:
        return venv.ensure(
            lock, builds, python=python, index=None, recipe=REPOSITORY / "images", cache=self.cache, log=self.log
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path)
    with packages.index(made.wheel, made.server) as address:
        configuration = tmp_path / "site-pip.conf"
        configuration.write_text(
            f"[global]\nindex-url = {address}\ncert = {made.authority}\nconstraint = /nowhere/constraints.txt\n"
        )
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CERT", *pipsite.BUNDLES):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
        yield made
    if engine.answers():
        for left in engine.client().images.list("bitmatrix/test-probe"):
            engine.client().images.remove(str(left.id), force=True)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real image registry on the loopback interface; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    configuration = tmp_path / "registry.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}"
    configuration.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '{address}'}}\n")
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", configuration], stdout=log, stderr=log)
    try:
        while socket.socket().connect_ex(("localhost", int(address.rpartition(":")[2]))):
            assert process.poll() is None, (tmp_path / "registry.log").read_text()
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()
