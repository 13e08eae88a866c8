"""What only a stack with torch can show of the cell's process: `PYTHONPATH=.:tests python -m cell.torch_checks`.

Plain functions, because a stack has no pytest. Every check starts real cells; the first that fails ends the program.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cell import jobs
from cell.jobs import Ending
from harness.cell.status import Status

TORCH = """\
import torch

def load(context):
    def run(inputs):
        given = {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}
        return {
            "out": torch.mm(given["x"], given["w"].T),
            "grads.x": torch.mm(given["upstream"], given["w"]),
            "grads.w": torch.mm(given["upstream"].T, given["x"]),
        }

    return run
"""

MODE = """\
import os

import torch

LIBRARY = torch.library.Library("aten", "IMPL")

def doubled(a, b):
    return (a.unsqueeze(-1) * b).sum(-2) * 2

def enable(key):
    LIBRARY.impl("mm", doubled, key)
    torch.bmm = doubled
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
"""


def cell(root: Path, source: str, mode: str | None = None, /, op: str = jobs.LINEAR, **changes: Any) -> Ending:
    """Run one cell of `source`; `mode` is the source of a module whose `enable` the job's activation calls."""
    if mode is not None:
        (root / "mode.py").write_text(mode, encoding="utf-8")
    return jobs.run(root, jobs.stage(root, source, op=op) | changes)


def done(ending: Ending) -> dict[str, Any]:
    """The claims of a cell that must be done."""
    assert ending.code == Status.DONE.exit_code, ending.stderr
    return ending.claims


def captured(ending: Ending, case: int, name: str) -> bytes:
    """A tensor's bytes, read from the file without the code that wrote it."""
    data = (ending.output / f"case-{case}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    start, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    return data[8 + size + start : 8 + size + end]


def check_a_plain_cell_overrides_nothing(root: Path) -> None:
    ending = cell(root, TORCH)
    claims = done(ending)
    assert claims["overrides"] == claims["patches"] == []
    x, w = (np.load(root / "inputs" / f"{name}.npy") for name in "xw")
    np.testing.assert_allclose(np.frombuffer(captured(ending, 3, "out"), "<f4").reshape(3, 2), x @ w.T, rtol=1e-5)


def check_an_override_is_named_with_operator_key_and_file(root: Path) -> None:
    key = "CPU"
    ending = cell(root, TORCH, MODE, activation={"function": "mode:enable", "arguments": {"key": key}})
    claims = done(ending)
    (override,) = claims["overrides"]
    assert (override["operator"], override["key"]) == ("aten::mm", key), override
    assert "mode.py" in override["after"], override
    assert "mode.py" not in override["before"], override
    (patch,) = claims["patches"]
    assert patch["function"] == "torch.bmm", patch
    assert patch["after"] == f"{root / 'mode.py'}:7", patch
    assert claims["facts"]["environment"]["changed"]["CUBLAS_WORKSPACE_CONFIG"] == [None, ":16:8"]
    x, w = (np.load(root / "inputs" / f"{name}.npy") for name in "xw")
    np.testing.assert_allclose(np.frombuffer(captured(ending, 3, "out"), "<f4").reshape(3, 2), 2 * x @ w.T, rtol=1e-5)


def check_a_mode_that_brings_torch_itself_is_not_charged_with_torch_s_own_kernels(root: Path) -> None:
    claims = done(cell(root, jobs.NUMPY, MODE, activation={"function": "mode:enable", "arguments": {"key": "CPU"}}))
    assert [override["operator"] for override in claims["overrides"]] == ["aten::mm"]


def check_a_mode_that_does_nothing_leaves_no_trace(root: Path) -> None:
    claims = done(cell(root, TORCH, "def enable():\n    pass\n", activation={"function": "mode:enable"}))
    assert claims["overrides"] == claims["patches"] == []
    assert claims["activation"] == {"function": "mode:enable", "seen": True, "environment": {}, "flags": {}}


def check_tf32_is_off_whatever_the_mode_chose(root: Path) -> None:
    old = "import torch\n\ndef enable():\n    torch.backends.cuda.matmul.allow_tf32 = True\n"
    claims = done(cell(root, TORCH, old, activation={"function": "mode:enable"}))
    assert claims["activation"]["flags"]["cuda.matmul.allow_tf32"] == [False, True]
    precision = claims["precision"]
    for moment, allowed in (("found", True), ("in_force", False)):
        assert precision[moment]["cuda.matmul.allow_tf32"] is allowed, precision
    assert precision["found"]["cudnn.allow_tf32"] is True, precision
    assert precision["in_force"]["cudnn.allow_tf32"] is False, precision


def check_tf32_switched_on_through_the_newer_switch_is_off_too(root: Path) -> None:
    new = "import torch\n\ndef enable():\n    torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
    precision = done(cell(root, TORCH, new, activation={"function": "mode:enable"}))["precision"]
    if precision["found"]["cuda.matmul.fp32_precision"] == "tf32":  # torch 2.9 and newer have this switch
        assert precision["in_force"]["cuda.matmul.fp32_precision"] == "ieee", precision
    assert precision["in_force"]["cuda.matmul.allow_tf32"] is False, precision


def check_another_thread_count_is_failed_with_both_numbers(root: Path) -> None:
    ending = cell(root, TORCH, threads=3)
    assert ending.code == Status.FAILED.exit_code
    assert ending.claims["reason"] == "torch uses 1 threads where 3 are declared", ending.claims["reason"]


def check_threads_are_counted_after_the_candidate_is_loaded(root: Path) -> None:
    source = TORCH.replace("def load(context):", "def load(context):\n    torch.set_num_threads(2)")
    assert cell(root, source).claims["reason"] == "torch uses 2 threads where 1 are declared"


def check_bfloat16_is_captured_bit_for_bit(root: Path) -> None:
    op = """
        from harness.cell.op import ROWS, Input, Op, Tensor

        OP = Op(
            name="rounded",
            inputs=(Input(name="x", shape=(ROWS, 4), stream=1),),
            outputs=(Tensor(name="out", shape=(4, ROWS), dtype="BF16"),),
        )
    """
    source = """
        import torch

        def load(context):
            return lambda given: {"out": torch.tensor(given["x"]).to(torch.bfloat16).requires_grad_().T}
    """
    ending = cell(root, source, op=op)
    claim = done(ending)["tensors"]["3"]["out"]
    words = np.load(root / "inputs" / "x.npy").view("<u4").astype(np.uint64)
    nearest_even = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
    expected = np.ascontiguousarray(nearest_even.astype("<u2").T).tobytes()
    assert captured(ending, 3, "out") == expected
    assert claim == {"dtype": "BF16", "shape": [4, 3], "sha256": hashlib.sha256(expected).hexdigest()}


def check_a_torch_result_of_another_dtype_is_refused(root: Path) -> None:
    ending = cell(root, TORCH.replace('given["w"].T)', 'given["w"].T).to(torch.float8_e4m3fn)'))
    assert ending.code == Status.FAILED.exit_code
    assert "out is F8_E4M3 (3, 2) where the op declares F32 (3, 2)" in ending.claims["reason"]


def check_a_cell_that_needs_no_torch_never_imports_it(root: Path) -> None:
    claims = done(cell(root, jobs.NUMPY))
    assert claims["facts"]["torch"] is None
    assert claims["precision"] == {"found": None, "in_force": None}
    assert "torch" not in claims["facts"]["modules"]


def check_torch_imported_only_while_loading_is_pinned_as_well(root: Path) -> None:
    source = jobs.NUMPY.replace("def load(context):", "def load(context):\n    import torch")
    precision = done(cell(root, source))["precision"]
    assert precision["found"] is None
    assert precision["in_force"]["cudnn.allow_tf32"] is False


def check_facts_describe_torch(root: Path) -> None:
    facts = done(cell(root, TORCH))["facts"]
    assert facts["torch"]["version"] == facts["modules"]["torch"]["version"]
    assert facts["torch"]["threads"] == 1
    assert "unreadable" not in json.dumps(facts), facts


def check_a_cuda_cell_runs_on_the_gpu_or_is_unavailable(root: Path) -> None:
    ending = cell(root, TORCH, device="cuda")
    if ending.code == Status.UNAVAILABLE.exit_code:
        assert "sees no CUDA device" in ending.claims["reason"], ending.claims["reason"]
        return
    gpu = done(ending)["facts"]["gpu"]
    assert all(gpu[key] for key in ("name", "capability", "uuid", "multiprocessors", "memory_bytes", "driver")), gpu
    x, w = (np.load(root / "inputs" / f"{name}.npy") for name in "xw")
    np.testing.assert_allclose(np.frombuffer(captured(ending, 3, "out"), "<f4").reshape(3, 2), x @ w.T, rtol=1e-5)


def check_a_cuda_override_is_named(root: Path) -> None:
    activation = {"function": "mode:enable", "arguments": {"key": "CUDA"}}
    ending = cell(root, TORCH, MODE, device="cuda", activation=activation)
    if ending.code == Status.UNAVAILABLE.exit_code:
        return
    (override,) = done(ending)["overrides"]
    assert (override["operator"], override["key"]) == ("aten::mm", "CUDA"), override


def check_the_diffusers_candidate_computes_the_op(root: Path) -> None:
    if importlib.util.find_spec("diffusers") is None:
        return
    op = """
        from harness.cell.op import ROWS, Input, Op, Tensor

        OP = Op(
            name="timestep_mlp",
            inputs=(
                Input(name="x", shape=(ROWS, 8), stream=1),
                Input(name="w1", shape=(12, 8), stream=2),
                Input(name="b1", shape=(12,), stream=3),
                Input(name="w2", shape=(5, 12), stream=4),
                Input(name="b2", shape=(5,), stream=5),
                Input(name="upstream", shape=(ROWS, 5), stream=6),
            ),
            outputs=(Tensor(name="out", shape=(ROWS, 5)),),
            gradients=("x", "w1", "b1", "w2", "b2"),
            upstream=("upstream",),
        )
    """
    job = jobs.stage(root, "", op=op)
    candidate = jobs.REPOSITORY / "kernels" / "timestep_mlp" / "candidates" / "diffusers.py"
    shutil.copy(candidate, Path(job["op_folder"]) / "candidates" / "tried.py")
    ending = jobs.run(root, job)
    done(ending)
    given = {path.stem: np.load(path).astype(np.float64) for path in (root / "inputs").glob("*.npy")}
    for case in (1, 3):
        for name, expected in _timestep_mlp(given, case).items():
            found = np.frombuffer(captured(ending, case, name), "<f4").reshape(expected.shape)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def _timestep_mlp(given: dict[str, Any], case: int) -> dict[str, Any]:
    """The op and its gradients in float64, from their definition."""
    x, upstream = given["x"][:case], given["upstream"][:case]
    z = x @ given["w1"].T + given["b1"]
    sigmoid = 1 / (1 + np.exp(-z))
    hidden = z * sigmoid
    of_z = (upstream @ given["w2"]) * (sigmoid * (1 + z * (1 - sigmoid)))
    return {
        "out": hidden @ given["w2"].T + given["b2"],
        "grads.x": of_z @ given["w1"],
        "grads.w1": of_z.T @ x,
        "grads.b1": of_z.sum(axis=0),
        "grads.w2": upstream.T @ hidden,
        "grads.b2": upstream.sum(axis=0),
    }


def main() -> int:
    """Run every check in a folder of its own; 0 when all hold."""
    checks: dict[str, Callable[[Path], None]] = {
        name: check for name, check in globals().items() if name.startswith("check_")
    }
    for name, check in checks.items():
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
        print(f"{name.removeprefix('check_')}: {time.perf_counter() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
