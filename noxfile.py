"""The sessions: `nox -l` lists them, `nox -s matrix` does the whole thing.

Each is one purpose and a call into `python -m harness`. Options after `--` go to it: --device, --isolation, --stack,
--mode, --case, --gpu, --fresh, --strict, --bundle, --out, --cache; `bisect` also takes --package and --by. Needs what
`pip install -e '.[nox]'` installs.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import nox
import yaml

nox.needs_version = ">=2026.8.17"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["matrix"]
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
# nox shows what any library logs, down to each request to the engine.
for library in ("docker", "urllib3"):
    logging.getLogger(library).setLevel(logging.WARNING)

BAD_INPUT, INTERRUPTED = 2, 130  # exit codes of the harness


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


def harness(session: nox.Session, *arguments: str) -> int:
    """What `python -m harness` does with these arguments and the session's options; its exit code.

    In nox's own process: seven sessions with nothing to do would take longer to start Python than to look.
    """
    try:
        from harness.cli import main
    except ImportError as error:
        session.error(f"{error}; install the harness beside nox: {sys.executable} -m pip install -e '.[nox]'")
    try:
        code = main([*arguments, *session.posargs])
    except SystemExit as ended:  # the options are not ours; it said so
        code = BAD_INPUT if ended.code else 0
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def alone(session: nox.Session, *arguments: str) -> None:
    """A step whose failure is the session's."""
    code = harness(session, *arguments)
    if code:
        session.error("bad input, nothing was run" if code == BAD_INPUT else "not complete; what is above says why")


def contained(session: nox.Session, *arguments: str) -> None:
    """A step whose failure must not keep the sessions after it: it is on record, and the table shows it."""
    code = harness(session, *arguments)
    if code == BAD_INPUT:
        session.error("bad input, nothing was run")
    if code:
        session.skip("not complete; the table will say why")


# One image and one run session a stack. They are registered one by one because `requires` on a parametrised session
# would build every stack for each.


def register_stack(stack: str) -> None:
    def image(session: nox.Session) -> None:
        contained(session, "image", stack)

    image.__doc__ = f"Make the environment of stack {stack}: its image, or its virtual environment."
    nox.session(name=f"image-{stack}", tags=[stack, "images"], allow_parallel=True, default=False)(image)


def register_run(stack: str, needs: list[str]) -> None:
    def run(session: nox.Session) -> None:
        contained(session, "run", stack)

    # Also on GPUs: a cell waits until one is its own.
    run.__doc__ = f"Run every cell of stack {stack} that isn't done, each in a process of its own."
    nox.session(name=f"run-{stack}", tags=[stack, "runs"], requires=needs, allow_parallel=True, default=False)(run)


MATRIX = devices()
DEVICE = MATRIX.get(chosen_device()) or {}
TOOLCHAIN = DEVICE.get("toolchain")

for name in dict.fromkeys(name for device in MATRIX.values() for name in stacks(device or {})):
    register_stack(name)


@nox.session(requires=[f"image-{TOOLCHAIN}"] if TOOLCHAIN in stacks(DEVICE) else [], allow_parallel=True, default=False)
def kernels(session: nox.Session) -> None:
    """Compile the op's kernel library, once an architecture, in the toolchain's stack."""
    contained(session, "kernels")


for name in dict.fromkeys(name for device in MATRIX.values() for name in running(device or {})):
    register_run(name, [f"image-{name}", "kernels"])


@nox.session(default=False)
def doctor(session: nox.Session) -> None:
    """Check what this host has and lacks for the matrix, each with its remedy; changes nothing."""
    alone(session, "doctor")


@nox.session(default=False)
def plan(session: nox.Session) -> None:
    """Print which cells would run, where and in which environment; runs nothing."""
    alone(session, "plan")


@nox.session(default=False)
def inputs(session: nox.Session) -> None:
    """Make the inputs and hold them against the digests that the repository pins."""
    alone(session, "inputs")


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Resolve all locks of all devices again and show what changes. -- --device NAME, --stack NAME narrow it."""
    alone(session, "lock")


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Verify a run from its files alone: captures, records, report, locks, images. -- RUN (default out/latest)."""
    alone(session, "audit")


@nox.session(default=False)
def bundle(session: nox.Session) -> None:
    """Pack images, wheels, inputs, kernels and the checkout for a host without a network. -- --to FILE."""
    alone(session, "bundle")


@nox.session(default=False)
def verify(session: nox.Session) -> None:
    """Run the matrix and hold it against a baseline: -- BASELINE.json. Fails unless --grade (bits, verdicts) holds."""
    alone(session, "verify")


@nox.session(default=False)
def bisect(session: nox.Session) -> None:
    """Find the first release that changes the bits: -- --stack NAME --package PACKAGE==A..B. --by verdicts."""
    alone(session, "bisect")


@nox.session(venv_backend="virtualenv", reuse_venv=True, default=False)
def sbom(session: nox.Session) -> None:
    """Write a bill of materials of each stack that was made here: CycloneDX, in out/sboms/. -- STACK for one."""
    project(session, "sbom")
    session.run("python", "-m", "harness", "sbom", *session.posargs)


@nox.session(default=False)
def clean(session: nox.Session) -> None:
    """Remove old runs and what no run needs. -- --keep N, --images, --all."""
    alone(session, "clean")


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """What changed between two reports, the most likely cause first. -- A.json B.json."""
    alone(session, "compare")


@nox.session(default=False)
def page(session: nox.Session) -> None:
    """Write any report as one HTML file. -- REPORT.json REPORT.html."""
    alone(session, "page")


@nox.session(default=False)
def figure(session: nox.Session) -> None:
    """Draw a report's heat map, errors and latencies, SVG and PNG (needs '.[figures]'). -- REPORT.json FOLDER."""
    alone(session, "figure")


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
    alone(session, "schema", "--write", "docs/matrix.schema.json")


@nox.session(venv_backend="virtualenv", reuse_venv=True, default=False)
def bench(session: nox.Session) -> None:
    """Measure the collector, a container's cost, a run with nothing to do; on a GPU -- kernel: ratios of one run."""
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
    alone(session, "collect")


@nox.session(requires=["plan", *(f"run-{name}" for name in running(DEVICE))])
def matrix(session: nox.Session) -> None:
    """Build every stack, run every cell, compare bit for bit and print the table."""
    alone(session, "collect" if running(DEVICE) else "matrix")
