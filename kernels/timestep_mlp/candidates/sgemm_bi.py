"""The peer sgemm-bi: deterministic FP32 GEMMs in an order of its own, with torch's SiLU between them.

Its weights are (in, out), so the published (out, in) weights are transposed first and their gradients back. Its bias
gradient is torch's sum over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sgemm_bi
import torch

from harness.cell.op import Context, Steps, Unavailable

Tensors = dict[str, torch.Tensor]


def load(context: Context) -> Steps:
    """Forward and backward; FP32 inputs and results as op.py declares them.

    Raises Unavailable on another device than a GPU: the package has no other.
    """
    if context.device != "cuda":
        raise Unavailable(f"sgemm-bi has no kernels for {context.device}")

    def place(inputs: Mapping[str, Any]) -> Tensors:
        given = {name: torch.tensor(value, device="cuda") for name, value in inputs.items()}
        return {**given, **{name: given[name].t().contiguous() for name in ("w1", "w2")}}

    return Steps(place=place, forward=lambda given: {"out": _forward(given)}, whole=_whole)


def _forward(given: Mapping[str, torch.Tensor]) -> torch.Tensor:
    hidden = sgemm_bi.deterministic_linear(given["x"], given["w1"], given["b1"])
    out: torch.Tensor = sgemm_bi.deterministic_linear(torch.nn.functional.silu(hidden), given["w2"], given["b2"])
    return out


def _whole(given: Mapping[str, torch.Tensor]) -> Tensors:
    leaves = {name: given[name].detach().requires_grad_() for name in ("x", "w1", "b1", "w2", "b2")}
    out = _forward(leaves)
    out.backward(given["upstream"])
    gradients = {f"grads.{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    turned = {name: value.t().contiguous() if ".w" in name else value for name, value in gradients.items()}
    return {"out": out, **turned}
