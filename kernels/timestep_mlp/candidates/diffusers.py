"""diffusers' own TimestepEmbedding: `linear_2(silu(linear_1(x)))` through torch, in whatever mode is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.embeddings import TimestepEmbedding

from harness.cell.op import Context, Steps


def load(context: Context) -> Steps:
    """Forward and backward on the context's device; FP32 inputs and results as op.py declares them."""

    def place(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        # torch's own memory, aligned as in any training run: a matmul may take another path for other addresses.
        return {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}

    return Steps(place=place, forward=lambda given: {"out": _module(given)(given["x"])}, whole=_whole)


def _whole(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    module = _module(given)
    x = given["x"].detach().requires_grad_()
    out = module(x)
    out.backward(given["upstream"])
    return {
        "out": out,
        "grads.x": x.grad,
        "grads.w1": module.linear_1.weight.grad,
        "grads.b1": module.linear_1.bias.grad,
        "grads.w2": module.linear_2.weight.grad,
        "grads.b2": module.linear_2.bias.grad,
    }


def _module(given: Mapping[str, torch.Tensor]) -> TimestepEmbedding:
    hidden, channels = given["w1"].shape
    # On meta, so that no random weights are drawn only to be replaced.
    with torch.device("meta"):
        module = TimestepEmbedding(in_channels=channels, time_embed_dim=hidden, out_dim=len(given["w2"]))
    weights = {
        "linear_1.weight": given["w1"],
        "linear_1.bias": given["b1"],
        "linear_2.weight": given["w2"],
        "linear_2.bias": given["b2"],
    }
    module.load_state_dict(weights, assign=True)
    return module
