"""Small op folders and jobs for tests of the cell's process. Standard library and numpy only: a stack runs it too."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from harness.cell.op import Op, load_op

REPOSITORY = Path(__file__).resolve().parents[2]

LINEAR = """
    from harness.cell.op import ROWS, Input, Op, Tensor

    OP = Op(
        name="linear",
        inputs=(
            Input(name="x", shape=(ROWS, 3), stream=1),
            Input(name="w", shape=(2, 3), stream=2),
            Input(name="upstream", shape=(ROWS, 2), stream=3),
        ),
        outputs=(Tensor(name="out", shape=(ROWS, 2)),),
        gradients=("x", "w"),
        upstream=("upstream",),
    )
"""
"""`out = x @ w.T` with both gradients: rows, weights and a gradient of each kind in a dozen numbers."""

NUMPY = """\
def load(context):
    return lambda given: {
        "out": given["x"] @ given["w"].T,
        "grads.x": given["upstream"] @ given["w"],
        "grads.w": given["upstream"].T @ given["x"],
    }
"""
"""The candidate that does LINEAR right; a test can add to its source."""


@dataclass(frozen=True)
class Ending:
    """A cell that ended: its exit code, what it printed, its output folder and its claims."""

    code: int
    stdout: str
    stderr: str
    output: Path

    @property
    def claims(self) -> dict[str, Any]:
        claims: dict[str, Any] = json.loads((self.output / "claims.json").read_text(encoding="utf-8"))
        return claims


def stage(root: Path, candidate: str = NUMPY, *, op: str = LINEAR, cases: tuple[int, ...] = (3, 1)) -> dict[str, Any]:
    """An op folder, its inputs and an output folder below `root`; returns the job of one cell on the CPU."""
    folder = root / "kernels" / "tested"
    (folder / "candidates").mkdir(parents=True)
    (folder / "op.py").write_text(dedent(op), encoding="utf-8")
    (folder / "candidates" / "tried.py").write_text(dedent(candidate), encoding="utf-8")
    (root / "out").mkdir()
    return {
        "schema": 1,
        "cell": "tried[plain]",
        "candidate": "tried",
        "mode": "plain",
        "device": "cpu",
        "op_folder": str(folder),
        "cases": list(cases),
        "threads": 1,
        "activation": None,
        "environment": {"OMP_NUM_THREADS": "1"},
        "inputs": {"folder": str(root / "inputs"), "digests": _inputs(root / "inputs", load_op(folder), cases)},
        "library": None,
        "output": str(root / "out"),
    }


def command(root: Path, job: Mapping[str, Any], python: str = sys.executable) -> list[str]:
    """The cell's command line, with the job written below `root`."""
    path = root / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return [python, "-P", "-s", "-B", "-m", "harness.cell", str(path)]


def environment(root: Path, job: Mapping[str, Any]) -> dict[str, str]:
    """The environment that a host would give: what the job declares, and modules importable from `root`."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{root}",
        **job["environment"],
    }


def run(root: Path, job: Mapping[str, Any], given: Mapping[str, str] | None = None) -> Ending:
    """Run the job in a fresh process, with the environment it declares or the one `given`."""
    done = subprocess.run(
        command(root, job),
        env=environment(root, job) if given is None else dict(given),
        cwd=root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ending(code=done.returncode, stdout=done.stdout, stderr=done.stderr, output=Path(job["output"]))


def _inputs(folder: Path, op: Op, cases: tuple[int, ...]) -> dict[str, Any]:
    folder.mkdir()
    digests: dict[str, Any] = {}
    for tensor in op.inputs:
        values = np.random.default_rng(tensor.stream).standard_normal(tensor.at(max(cases))).astype("<f4")
        np.save(folder / f"{tensor.name}.npy", values)
        by_case = {str(case): hashlib.sha256(values[:case].tobytes()).hexdigest() for case in cases}
        digests[tensor.name] = by_case if tensor.has_rows else hashlib.sha256(values.tobytes()).hexdigest()
    return digests
