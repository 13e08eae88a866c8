"""The kernel under test: contract h3-det-linear-v1 from the op's compiled library, with the device's own expf."""

from __future__ import annotations

from pathlib import Path

from harness.cell.op import Context, Run, load_module

binding = load_module(Path(__file__).parents[1] / "binding.py", "bitmatrix_det_linear")


def load(context: Context) -> Run:
    """A run of forward and backward; see binding.load."""
    run: Run = binding.load(context, binding.SILU)
    return run
