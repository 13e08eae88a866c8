"""The peer sgemm-bi: deterministic FP32 GEMMs in an order of its own, with torch's SiLU between them.

Its weights are (in, out), so the published (out, in) weights are transposed first and their gradients back. Its bias
gradient is torch's sum over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sgemm_bi
import torch

from harness.cell.op import Context, Run, Unavailable


def load(context: Context) -> Run:
    """A run of forward and backward; FP32 inputs and results as op.py declares them.

    Raises Unavailable on another device than a GPU: the package has no other.
    """
    if context.device != "cuda":
        raise Unavailable(f"sgemm-bi has no kernels for {context.device}")

    def run(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        given = {name: torch.tensor(value, device="cuda") for name, value in inputs.items()}
        leaves = {name: given[name] for name in ("x", "b1", "b2")}
        leaves |= {name: given[name].t().contiguous() for name in ("w1", "w2")}
        leaves = {name: value.requires_grad_() for name, value in leaves.items()}
        hidden = sgemm_bi.deterministic_linear(leaves["x"], leaves["w1"], leaves["b1"])
        out = sgemm_bi.deterministic_linear(torch.nn.functional.silu(hidden), leaves["w2"], leaves["b2"])
        out.backward(given["upstream"])
        gradients = {f"grads.{name}": leaves[name].grad for name in ("x", "w1", "b1", "w2", "b2")}
        turned = {name: value.t().contiguous() if ".w" in name else value for name, value in gradients.items()}
        return {"out": out, **turned}

    return run
