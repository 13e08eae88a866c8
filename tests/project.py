"""A small project of its own: one op, candidates that behave and misbehave, and a stack with NumPy alone."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from harness import lock
from harness.workspace import REPOSITORY

OP = """
from harness.cell.op import ROWS, Input, Op, Tensor
OP = Op(
    name="scale",
    inputs=(Input(name="x", shape=(ROWS, 8), stream=1), Input(name="g", shape=(ROWS, 8), stream=2)),
    outputs=(Tensor(name="out", shape=(ROWS, 8)),),
    gradients=("x",),
    upstream=("g",),
)
"""

GOOD = """
import numpy as np
def load(context):
    return lambda inputs: {"out": inputs["x"] * np.float32(3), "grads.x": inputs["g"] * np.float32(3)}
"""

OTHER = """
import numpy as np
def load(context):
    return lambda inputs: {"out": inputs["x"] * np.float32(3.0000002), "grads.x": inputs["g"] * np.float32(3)}
"""


def in_run(statement: str) -> str:
    """A candidate that does something of its own at its first case."""
    return f"""
import ctypes, json, os, signal, sys, time
from pathlib import Path
import numpy as np
output = Path(json.load(open(sys.argv[1]))["output"])
def load(context):
    def run(inputs):
        {statement}
        return {{"out": inputs["x"] * np.float32(3), "grads.x": inputs["g"] * np.float32(3)}}
    return run
"""


class Project:
    """A folder with kernels/, images/ and matrix.yaml, and the options that make the command line use it."""

    def __init__(self, folder: Path, candidates: Mapping[str, str], *, cases: tuple[int, ...] = (1, 4)) -> None:
        self.root = folder
        self.out = folder / "out"
        self.op = folder / "kernels" / "scale"
        shutil.copytree(REPOSITORY / "images", folder / "images")
        (self.op / "candidates").mkdir(parents=True)
        (self.op / "op.py").write_text(OP)
        for name, text in candidates.items():
            (self.op / "candidates" / f"{name}.py").write_text(text)
        committed = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
        cpu = committed["devices"]["cpu"]
        self.matrix = {
            "format": 1,
            "op": "scale",
            "cases": list(cases),
            "report": {"kind": "test", "rfc": "none", "libraries": {"numpy": "golden"}},
            "bases": {"debian12": committed["bases"]["debian12"]},
            "devices": {
                "cpu": {
                    "threads": 2,
                    "environment": {"OPENBLAS_NUM_THREADS": "2"},
                    "limits": {"seconds": 60, "memory_gib": 1, "processes": 64},
                    "stacks": {"golden": cpu["stacks"]["golden"], "toolchain": cpu["stacks"]["toolchain"]},
                    "toolchain": "toolchain",
                    "candidates": {name: {"stack": "golden", "source": name} for name in candidates},
                    "references": [next(iter(candidates))],
                }
            },
        }
        self.write()

    @property
    def cpu(self) -> dict[str, object]:
        device: dict[str, object] = self.matrix["devices"]["cpu"]  # type: ignore[index]
        return device

    def write(self) -> None:
        """Write matrix.yaml as `matrix` now says."""
        (self.root / "matrix.yaml").write_text(yaml.safe_dump(self.matrix, sort_keys=False))

    def add_broken_stack(self) -> None:
        """A stack `broken` like `golden`, whose lock names a file of NumPy that no index has."""
        locks = self.root / "images" / "locks" / "cpu"
        found = lock.read(locks / "golden-x86_64-py3.11.txt")
        pins = [replace(pin, hashes=("0" * 64,)) if pin.name == "numpy" else pin for pin in found.pins.values()]
        path = locks / "broken-x86_64-py3.11.txt"
        lock.write(path, stack="broken", device="cpu", requirements=list(found.requirements), pins=pins)
        self.cpu["stacks"]["broken"] = self.cpu["stacks"]["golden"]  # type: ignore[index]

    def options(self, *more: str, isolation: str = "docker") -> list[str]:
        """Options of a command on this project."""
        place = ["--root", str(self.root), "--out", str(self.out), "--device", "cpu", "--isolation", isolation]
        return [*place, *more]

    def latest(self) -> Path:
        """The newest run's folder."""
        return (self.out / "latest").resolve()
