"""Contract h3-det-linear-v1 with an exponential of explicitly rounded operations: the same bits on CPU and GPU."""

from __future__ import annotations

from pathlib import Path

from harness.cell.op import Context, Steps, load_module

binding = load_module(Path(__file__).parents[1] / "binding.py", "bitmatrix_det_linear")


def load(context: Context) -> Steps:
    """Forward and backward; see binding.load."""
    steps: Steps = binding.load(context, binding.PORTABLE)
    return steps
