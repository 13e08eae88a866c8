"""Growing the matrix needs no change in harness/: each kind of addition that docs/ explains, made and run for real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from project import GOOD, Project

from harness import cli, lock

pytestmark = pytest.mark.docker

KERNEL = """
extern "C" __attribute__((visibility("default"))) void triple(const float *x, float *y, long n) {
    for (long i = 0; i < n; ++i) y[i] = x[i] * 3.0f;
}
"""

BY_KERNEL = """
import ctypes
import numpy as np
def load(context):
    library = ctypes.CDLL(str(context.library))
    pointer = np.ctypeslib.ndpointer(np.float32, flags="C")
    library.triple.argtypes = [pointer, pointer, ctypes.c_long]
    library.triple.restype = None
    def triple(x):
        x, y = np.ascontiguousarray(x), np.empty_like(x)
        library.triple(x, y, x.size)
        return y
    return lambda inputs: {"out": triple(inputs["x"]), "grads.x": triple(inputs["g"])}
"""

MODED = """
import os
import numpy as np
def load(context):
    assert os.environ["SAID"] == "by the mode"
    assert np.geterr()["over"] == "raise"
    return lambda inputs: {"out": inputs["x"] * np.float32(3), "grads.x": inputs["g"] * np.float32(3)}
"""

PURE_OP = """
from harness.cell.op import ROWS, Input, Op, Tensor
OP = Op(
    name="split",
    inputs=(Input(name="x", shape=(ROWS, 6), stream=11),),
    outputs=(Tensor(name="low", shape=(ROWS, 3)), Tensor(name="high", shape=(ROWS, 3), dtype="F64")),
)
"""

PURE = """
def load(context):
    return lambda inputs: {"low": inputs["x"][:, :3].copy(), "high": inputs["x"][:, 3:].astype("f8")}
"""


def report(project: Project) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((project.latest() / "report.json").read_text())
    return loaded


def test_a_kernel_is_a_folder_of_sources_and_a_candidate(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "kernel": BY_KERNEL})
    (project.op / "src").mkdir()
    (project.op / "src" / "triple.cpp").write_text(KERNEL)
    project.cpu["candidates"]["kernel"]["library"] = True  # type: ignore[index]
    project.write()
    assert cli.main(["matrix", *project.options()]) == 0
    found = report(project)
    assert found["bitmatrix"]["classes"]["whole"] == [["good", "kernel"]]
    assert found["bitmatrix"]["library"]["compiler"] == "ziglang==0.17.1"
    (project.op / "src" / "triple.cpp").write_text("this is no C++")
    assert cli.main(["matrix", *project.options()]) == 1
    cells = report(project)["bitmatrix"]["cells"]
    assert cells["good"]["status"] == "done"
    assert cells["kernel"]["status"] == "failed"
    assert "compiling the kernel failed" in cells["kernel"]["reason"]
    assert "this is no C++" in (project.latest() / cells["kernel"]["log"]).read_text()


def test_an_op_is_a_folder_with_its_declaration(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    op = project.root / "kernels" / "split"
    (op / "candidates").mkdir(parents=True)
    (op / "op.py").write_text(PURE_OP)
    (op / "candidates" / "pure.py").write_text(PURE)
    (op / "candidates" / "again.py").write_text(PURE)
    project.matrix["op"] = "split"
    project.cpu["candidates"] = {name: {"stack": "golden", "source": name} for name in ("pure", "again")}
    project.cpu["references"] = ["pure"]
    project.write()
    assert cli.main(["inputs", *project.options(isolation="host"), "--pin"]) == 0
    assert cli.main(["matrix", *project.options()]) == 0
    case = report(project)["results"]["again"]["vs pure"]["4"]
    assert case == {"out": [{"equal": True, "differ": 0, "numel": 12, "max_abs": 0.0}] * 2, "grads": {}}
    assert report(project)["bitmatrix"]["inputs_pinned"]


def test_a_mode_is_an_entry_with_its_environment_and_activation(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "moded": GOOD})
    project.cpu["modes"] = {
        "strict": {
            "stack": "golden",
            "environment": {"SAID": "by the mode"},
            "activation": {"function": "numpy:seterr", "arguments": {"over": "raise"}},
        },
        "nowhere": {"stack": "golden", "activation": {"function": "numpy:no_such_function"}},
    }
    project.cpu["candidates"]["moded"] = {"modes": ["strict", "nowhere"], "source": "moded"}  # type: ignore[index]
    (project.op / "candidates" / "moded.py").write_text(MODED)
    project.write()
    assert cli.main(["matrix", *project.options()]) == 1
    cells = report(project)["bitmatrix"]["cells"]
    assert cells["moded[strict]"]["status"] == "done", cells["moded[strict]"]
    assert cells["moded[nowhere]"]["status"] == "unavailable"
    assert "no_such_function" in cells["moded[nowhere]"]["reason"]
    assert report(project)["environment"]["mode_environment"]["strict"] == {"SAID": "by the mode"}


def test_a_stack_is_an_entry_and_a_lock_that_one_command_makes(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "elsewhere": GOOD})
    requirements = ["numpy==2.4.6", "packaging"]
    project.cpu["stacks"]["packaged"] = {"base": "debian12", "requirements": requirements}  # type: ignore[index]
    project.cpu["candidates"]["elsewhere"]["stack"] = "packaged"  # type: ignore[index]
    project.write()
    assert cli.main(["matrix", *project.options()]) == 1
    cells = report(project)["bitmatrix"]["cells"]
    assert cells["elsewhere"]["status"] == "unavailable"
    assert "nox -s lock -- --device cpu --stack packaged" in cells["elsewhere"]["reason"]
    assert cli.main(["lock", *project.options("--stack", "packaged")]) == 0
    made = lock.read(project.root / "images" / "locks" / "cpu" / "packaged-x86_64-py3.11.txt")
    assert set(made.pins) == {"numpy", "packaging"}
    assert cli.main(["matrix", *project.options()]) == 0
    found = report(project)["bitmatrix"]
    assert found["classes"]["whole"] == [["good", "elsewhere"]]
    assert found["stacks"]["packaged"]["distributions"]["packaging"] == made.pins["packaging"].version
    assert found["stacks"]["packaged"]["image_id"] != found["stacks"]["golden"]["image_id"]
