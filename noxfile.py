"""The sessions: `nox -l` lists them, `nox -s matrix` does the whole thing.

Each is one purpose and a call into `python -m harness`. Options after `--` go to it: --device, --isolation, --stack,
--mode, --case, --fresh, --out, --cache. Needs what `pip install -e '.[nox]'` installs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nox
import yaml
from nox.command import CommandFailed

nox.needs_version = ">=2026.8.17"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["matrix"]
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
CLEANUP_SECONDS = 15  # what a run may take to remove its containers after Ctrl-C; nox's own half second is too short


Tree = dict[str, Any]


def devices() -> Tree:
    """The matrix by device; empty when it can't be read: saying what is wrong with it is the sessions' work."""
    try:
        return dict(yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))["devices"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return {}


def chosen_device() -> str:
    """What `--device` says, else cuda where an NVIDIA driver is loaded."""
    for option, value in zip(sys.argv, [*sys.argv[1:], ""], strict=True):
        if option == "--device":
            return value
        if option.startswith("--device="):
            return option.removeprefix("--device=")
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def stacks(device: Tree) -> list[str]:
    return [str(name) for name in device.get("stacks") or {}]


def running(device: Tree) -> list[str]:
    """The stacks that have cells."""
    try:
        candidates = list(device["candidates"].values())
        used = {device["modes"][mode]["stack"] for candidate in candidates for mode in candidate.get("modes", [])}
        used |= {candidate["stack"] for candidate in candidates if "stack" in candidate}
    except (AttributeError, KeyError, TypeError):
        return []
    return [name for name in stacks(device) if name in used]


def harness(session: nox.Session, *arguments: str) -> None:
    """Run `python -m harness` with the session's options. Raises CommandFailed when it doesn't exit with 0."""
    session.run(
        sys.executable,
        "-m",
        "harness",
        *arguments,
        *session.posargs,
        external=True,
        log=False,
        interrupt_timeout=CLEANUP_SECONDS,
        terminate_timeout=CLEANUP_SECONDS,
    )


def contained(session: nox.Session, *arguments: str) -> None:
    """As `harness`, but a failure is this session's alone: it is skipped, and those after it go on.

    What failed is on record, and the table shows it. Bad input (exit code 2) does end the whole.
    """
    try:
        harness(session, *arguments)
    except CommandFailed as failed:
        if "code 2" in str(failed.reason):
            raise
        session.skip(f"not complete, the table will say why ({failed.reason})")


# One image and one run session a stack. They are registered one by one because `requires` on a parametrised session
# would build every stack for each.


def register_stack(stack: str) -> None:
    def image(session: nox.Session) -> None:
        contained(session, "image", stack)

    image.__doc__ = f"Make the environment of stack {stack}: its image, or its virtual environment."
    nox.session(name=f"image-{stack}", tags=[stack, "images"], default=False)(image)


def register_run(stack: str, needs: list[str]) -> None:
    def run(session: nox.Session) -> None:
        contained(session, "run", stack)

    run.__doc__ = f"Run every cell of stack {stack} that isn't done, each in a process of its own."
    nox.session(name=f"run-{stack}", tags=[stack, "runs"], requires=needs, default=False)(run)


MATRIX = devices()
DEVICE = MATRIX.get(chosen_device()) or {}
TOOLCHAIN = DEVICE.get("toolchain")

for name in dict.fromkeys(name for device in MATRIX.values() for name in stacks(device or {})):
    register_stack(name)


@nox.session(requires=[f"image-{TOOLCHAIN}"] if TOOLCHAIN in stacks(DEVICE) else [], default=False)
def kernels(session: nox.Session) -> None:
    """Compile the op's kernel library, once an architecture, in the toolchain's stack."""
    contained(session, "kernels")


for name in dict.fromkeys(name for device in MATRIX.values() for name in running(device or {})):
    register_run(name, [f"image-{name}", "kernels"])


@nox.session(default=False)
def plan(session: nox.Session) -> None:
    """Print which cells would run, where and in which environment; runs nothing."""
    harness(session, "plan")


@nox.session(default=False)
def inputs(session: nox.Session) -> None:
    """Make the inputs and hold them against the digests that the repository pins."""
    harness(session, "inputs")


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve the stacks' locks again and show what changes, by package. -- --stack NAME for one."""
    harness(session, "lock")


@nox.session(default=False)
def clean(session: nox.Session) -> None:
    """Remove old runs and what no run needs. -- --keep N, --images, --all."""
    harness(session, "clean")


# Upkeep --------------------------------------------------------------------------------------------------------------


@nox.session(venv_backend="virtualenv", reuse_venv=True, default=False)
def tests(session: nox.Session) -> None:
    """Run the tests: fast ones, and those with real containers where a Docker engine answers."""
    project(session, "test")
    session.run("pytest", *session.posargs)


@nox.session(venv_backend="virtualenv", reuse_venv=True, default=False)
def lint(session: nox.Session) -> None:
    """Check style, format and types."""
    project(session, "test", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session(default=False)
def schema(session: nox.Session) -> None:
    """Write docs/matrix.schema.json, which gives editors completion, from the model."""
    harness(session, "schema", "--write", "docs/matrix.schema.json")


@nox.session(venv_backend="virtualenv", reuse_venv=True, default=False)
def bench(session: nox.Session) -> None:
    """Measure the collector, the cost of a container and a run with nothing to do; prints ratios of one run."""
    project(session, "test")
    session.run("python", "-m", "benchmarks", *session.posargs)


def project(session: nox.Session, *groups: str) -> None:
    """Install this checkout and dependency groups, in the versions of constraints.txt."""
    chosen = [option for group in groups for option in ("--group", group)]
    session.install("--quiet", "--constraint", "constraints.txt", "--editable", ".", *chosen)


# Last, so that they run last, also with -j: what they need is on record by then, whatever failed.


@nox.session(default=False)
def collect(session: nox.Session) -> None:
    """Compare what is there and write report.json and report.md; runs no cell. -- RUN for an older run."""
    harness(session, "collect")


@nox.session(requires=[f"run-{name}" for name in running(DEVICE)])
def matrix(session: nox.Session) -> None:
    """Build every stack, run every cell, compare bit for bit and print the table."""
    harness(session, "collect" if running(DEVICE) else "matrix")
