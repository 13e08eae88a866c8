"""What an op folder declares: its inputs, outputs and gradients, and what a candidate is given.

Shared by both halves: the host makes inputs and checks captures from it, a cell runs from it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROWS = "T"
"""The one symbolic dimension of a shape: the case, i.e. the number of rows."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor by name, symbolic shape (ints and `ROWS`) and safetensors dtype name (`F32`, `BF16`, ...)."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "F32"

    def at(self, case: int) -> tuple[int, ...]:
        """The concrete shape for `case` rows."""
        return tuple(case if dimension == ROWS else int(dimension) for dimension in self.shape)

    @property
    def has_rows(self) -> bool:
        """Whether the tensor grows with the case; one that doesn't is shared by all cases."""
        return ROWS in self.shape


@dataclass(frozen=True, kw_only=True)
class Input(Tensor):
    """An input tensor, its random stream (a Philox key, unique in the op) and its float32 scale."""

    stream: int
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Op:
    """An operator: its inputs, its outputs, and which inputs get a gradient, in the report's order.

    `upstream` names the inputs that are the gradients of the outputs (same order as `outputs`); an op without
    gradients leaves it and `gradients` empty.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Tensor, ...]
    gradients: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()

    def results(self) -> tuple[Tensor, ...]:
        """Every tensor a candidate returns: the outputs by name, then each gradient as `grads.<input>`."""
        by_name = {tensor.name: tensor for tensor in self.inputs}
        gradients = (by_name[name] for name in self.gradients)
        return self.outputs + tuple(
            Tensor(name=f"grads.{tensor.name}", shape=tensor.shape, dtype=tensor.dtype) for tensor in gradients
        )


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a candidate may know of where it runs.

    `device` is "cpu" or "cuda"; `threads` the declared number of CPU threads; `library` the op's compiled
    kernel library, or None where the op has no kernel sources.
    """

    device: str
    threads: int
    library: Path | None


class Unavailable(Exception):
    """A fact about the machine or a package (a library, a version, hardware is absent), not a fault."""


Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What a candidate's `load(context)` returns: numpy inputs of one case by name -> result tensors by name.

Result tensors are numpy arrays or torch tensors; their names are those of `Op.results()`. A `Steps` is a run, too.
"""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A run in its parts, so that a measure can call again and again what it placed once.

    `place` puts numpy inputs where the candidate computes and returns them by name; a measure may exchange those with
    rows for others, alike, of another number of rows. `forward` returns the outputs, `whole` every result; neither
    changes what was placed.
    """

    place: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    forward: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None
    whole: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Every result of one case."""
        return self.whole(self.place(inputs))


def steps(run: Run) -> Steps:
    """The parts of a run; one that is a mere function can't do its forward alone."""
    return run if isinstance(run, Steps) else Steps(place=dict, forward=None, whole=run)


def load_module(path: Path, name: str) -> ModuleType:
    """Import the Python file `path` under `name`, without putting its folder on sys.path.

    `kernels/` on sys.path would shadow a published package of that name.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_op(folder: Path) -> Op:
    """The `OP` that `folder/op.py` declares. Raises ImportError or TypeError when there is none."""
    op = getattr(load_module(folder / "op.py", f"bitmatrix_op_{folder.name}"), "OP", None)
    if not isinstance(op, Op):
        raise TypeError(f"{folder / 'op.py'} must define OP, an harness.cell.op.Op")
    return op
