"""What tests share: a small matrix, and the engine where one answers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from harness import base, engine, gpu, matrix
from harness.base import BaseImage
from harness.workspace import REPOSITORY, default_cache


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-docker", action="store_true", help="fail, not skip, when no Docker engine answers")


def pytest_configure() -> None:
    # A shell starts what runs in its background with SIGINT ignored, and so would be every process of these tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Shared machines stall: how long an example took says nothing about it.
    settings.register_profile("bitmatrix", deadline=None)
    settings.load_profile("bitmatrix")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with real containers run where an engine answers; under --require-docker its absence is an error.

    Tests on a GPU run where NVIDIA's driver has one.
    """
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
    marked = [item for item in items if item.get_closest_marker("docker")]
    if not marked or engine.answers():
        return
    if config.getoption("--require-docker"):
        raise pytest.UsageError("--require-docker: no Docker engine answers")
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no Docker engine answers"))


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
