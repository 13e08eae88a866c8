"""The kernel under test on a GPU beside its peers, in one run: `nox -s bench -- kernel`.

Forward, and forward with backward, in FP32 without TF32, by CUDA events: what a call takes from its start to the end of
its work, the host's part included where that is longer. Candidates take turns, so that each meets the same clocks.
Beside it stands the floor: what the call's bytes, or its operations, take at least.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import gpu, inputs, library
from harness.cell.op import Context, Op, Steps, load_module, load_op
from harness.environment import Environment
from harness.files import write_json
from harness.workspace import REPOSITORY

OP_FOLDER = REPOSITORY / "kernels" / "timestep_mlp"
PLAIN, OURS, PEER = "diffusers", "det_linear", "sgemm_bi"
CANDIDATES = (PLAIN, OURS, "det_linear_portable", "det_linear_triton", PEER)
CASES = (1, 4, 64, 256, 2048)
KINDS = ("forward", "whole")
PROMISED = {1: 1.0, 4: 1.0, 64: 1.5, 256: 1.5, 2048: 1.4}
"""At most so many times plain, by case."""
PROMISED_OF_WEIGHTS = 1.5
"""In the smallest cases the forward's kernels take at most so many times what reading the weights once takes."""
_WARMUP, _GRAPHED = 10, 20
_COPIED = 1 << 30
_LANES = 128
"""FP32 units of a multiprocessor from capability 8.6 on (CUDA programming guide, throughput of arithmetic)."""

Call = Callable[[], Any]
Times = dict[str, dict[str, dict[int, float]]]
"""Kind -> candidate -> case -> median microseconds."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a GPU does in a microsecond at most: bytes that a copy reads and writes, as measured; FP32 operations."""

    name: str
    copied: float
    operations: float

    def floor(self, op: Op, kind: str, case: int) -> float:
        """Microseconds that a call's bytes or operations take: tensors once, weights thrice with the backward."""
        weights = [tensor for tensor in op.inputs if not tensor.has_rows]
        rows = (op.inputs[0], *op.outputs)
        products = sum(math.prod(tensor.at(case)) for tensor in weights if len(tensor.shape) == 2)
        passes = 1 if kind == "forward" else 3
        moved = 4 * (
            passes * sum(math.prod(tensor.at(case)) for tensor in weights) + sum(math.prod(t.at(case)) for t in rows)
        )
        return max(moved / self.copied, passes * 2 * case * products / self.operations)

    def weights(self, op: Op) -> float:
        """Microseconds to read the weights once, at the rate of a copy."""
        return 4 * sum(math.prod(tensor.at(1)) for tensor in op.inputs if not tensor.has_rows) / self.copied


def measure(folder: Path, *, repeats: int) -> bool:
    """Print the table, and write it to `folder`/kernel.json; whether every promise holds. False without a GPU."""
    try:
        one = gpu.choose().gpus[0]
        import torch
    except (gpu.NoDriver, ImportError) as error:
        print(f"kernel: needs an NVIDIA GPU and torch: {error}")
        return False
    torch.backends.cuda.matmul.allow_tf32 = False
    op = load_op(OP_FOLDER)
    made = inputs.make(folder, op, CASES)
    arrays = {tensor.name: np.load(made / f"{tensor.name}.npy") for tensor in op.inputs}
    clock = float(gpu.state(one).sm_max_mhz or 0)
    machine = Machine(name=one.name, copied=_copied(), operations=(one.multiprocessors or 0) * _LANES * 2 * clock)
    candidates = _candidates(folder)
    times: Times = {kind: {name: {} for name in candidates} for kind in KINDS}
    graphed: dict[int, float] = {}
    for case in CASES:
        given = {one.name: arrays[one.name][:case] if one.has_rows else arrays[one.name] for one in op.inputs}
        placed = {name: steps.place(given) for name, steps in candidates.items()}
        for kind in KINDS:
            calls = {name: partial(getattr(steps, kind), placed[name]) for name, steps in candidates.items()}
            for name, median in _medians(calls, repeats).items():
                times[kind][name][case] = median
        if PROMISED[case] == 1:
            graphed[case] = _graphed(partial(candidates[OURS].forward or dict, placed[OURS]))
    written = {"machine": asdict(machine), "repeats": repeats, "microseconds": times, "graphed_forward": graphed}
    write_json(folder / "kernel.json", written)
    print(f"kernel: {machine.name}, medians of {repeats} in turn; floor from a copy's {machine.copied / 1e6:.2f} TB/s "
          f"and {machine.operations / 1e6:.1f} TFLOP/s")  # fmt: skip
    broken = [*_table(times, machine, op), *_small(graphed, machine.weights(op))]
    for line in broken:
        print(f"kernel: not as promised: {line}")
    return not broken


def _candidates(folder: Path) -> dict[str, Steps]:
    here = Environment(stack="toolchain", isolation="host", python=sys.executable, identity="this interpreter")
    built = library.build(folder, OP_FOLDER, "cuda", here).path
    found = {}
    for name in CANDIDATES:
        try:
            module = load_module(OP_FOLDER / "candidates" / f"{name}.py", f"benchmarked_{name}")
        except ImportError as error:
            print(f"kernel: {name} is left out: {error}")
            continue
        found[name] = module.load(Context(device="cuda", threads=1, library=built))
    return found


# Times ---------------------------------------------------------------------------------------------------------------


def _medians(calls: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Microseconds of each call, the calls taking turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(_WARMUP + repeats):
        for name, call in calls.items():
            taken = _timed(call)
            if repeat >= _WARMUP:
                found[name].append(taken)
    return {name: statistics.median(one) for name, one in found.items()}


def _timed(call: Call) -> float:
    import torch

    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1000


def _graphed(call: Call) -> float:
    """Microseconds of the call's kernels alone: many calls in one CUDA graph, without the host between them."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_GRAPHED):
            call()
    return _medians({"": graph.replay}, 20)[""] / _GRAPHED


def _copied() -> float:
    import torch

    source = torch.ones(_COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPIED / _medians({"": lambda: target.copy_(source)}, 20)[""]


# The table -----------------------------------------------------------------------------------------------------------


def _table(times: Times, machine: Machine, op: Op) -> Iterator[str]:
    """Print it; yields what isn't as promised."""
    names = list(times["forward"])
    print("| T | call | floor us | " + " | ".join(f"{name} us" for name in names) + " | ours / plain |")
    print("|---:|---|---:|" + "---:|" * (len(names) + 1))
    for case in CASES:
        for kind in KINDS:
            row = {name: times[kind][name][case] for name in names}
            ratio = row[OURS] / row[PLAIN] if PLAIN in row else float("nan")
            figures = " | ".join(f"{value:,.0f}" for value in row.values())
            print(f"| {case} | {kind} | {machine.floor(op, kind, case):,.0f} | {figures} | {ratio:.2f} |")
            if not ratio <= PROMISED[case]:
                yield f"T={case} {kind}: {ratio:.2f} times plain, promised {PROMISED[case]}"
            if row[OURS] > row.get(PEER, float("inf")):
                yield f"T={case} {kind}: slower than {PEER}"


def _small(graphed: Mapping[int, float], weights: float) -> Iterator[str]:
    for case, taken in graphed.items():
        ratio = taken / weights
        print(f"kernel: T={case}: the forward's kernels take {taken:.1f} us, {ratio:.2f} times reading the weights")
        if ratio > PROMISED_OF_WEIGHTS:
            yield f"T={case}: {ratio:.2f} times reading the weights, promised {PROMISED_OF_WEIGHTS}"
