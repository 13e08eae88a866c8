"""The op's kernel library for tests: compiled by this interpreter's ziglang, or by nvcc, once for given sources."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness import library
from harness.cell.op import load_module
from harness.environment import Environment
from harness.matrix import DeviceName
from harness.workspace import REPOSITORY, default_cache

OP_FOLDER = REPOSITORY / "kernels" / "timestep_mlp"

binding: Any = load_module(OP_FOLDER / "binding.py", "bitmatrix_det_linear")


def compile_library(device: DeviceName = "cpu") -> Path:
    """The library of the sources as they are now, kept between test runs.

    Raises Unavailable when this machine has no compiler for it, BitmatrixError when the sources don't compile.
    """
    here = Environment(stack="toolchain", isolation="host", python=sys.executable, identity="this interpreter")
    return library.build(default_cache() / "tests", OP_FOLDER, device, here).path


class Kernel:
    """The binding's functions on NumPy arrays, whatever the device; its exponential is the portable one."""

    def __init__(self, device: DeviceName, threads: int = 2) -> None:
        """Compile and load the device's library."""
        self.device = device
        self.bound: Any = binding.DetLinear(compile_library(device), threads, device, binding.PORTABLE)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function of the binding that takes arrays or a mapping of them, and returns what it does."""
        function = getattr(self.bound, name)
        return lambda *arguments: self._home(function(*map(self.placed, arguments)))

    def placed(self, value: Any) -> Any:
        """Where the library computes: the same array on a CPU, a copy on a GPU."""
        if isinstance(value, Mapping):
            return self.bound.memory.place(value)
        return self.bound.memory.place({"": value})[""]

    def _home(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._home(one) for name, one in value.items()}
        if isinstance(value, tuple):
            return tuple(map(self._home, value))
        return value if isinstance(value, np.ndarray) else value.cpu().numpy()
