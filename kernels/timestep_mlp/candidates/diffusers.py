"""diffusers' own TimestepEmbedding: `linear_2(silu(linear_1(x)))` through torch, in whatever mode is on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.embeddings import TimestepEmbedding

from harness.cell.op import Context, Steps

_WEIGHTS = ("w1", "b1", "w2", "b2")


def load(context: Context) -> Steps:
    """Forward and backward on the context's device; FP32 inputs and results as op.py declares them."""

    def place(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        # torch's own memory, aligned as in any training run: a matmul may take another path for other addresses.
        return {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}

    return Steps(place=place, forward=_forward, whole=_whole)


@torch.no_grad()
def _forward(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"out": _module(*(given[name] for name in _WEIGHTS))(given["x"])}


def _whole(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    module = _module(*(given[name] for name in _WEIGHTS))
    module.zero_grad(set_to_none=True)
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


@functools.lru_cache(maxsize=1)
def _module(w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> TimestepEmbedding:
    """The module of these very tensors: made once for all calls, as in training, so that calls alone are timed."""
    hidden, channels = w1.shape
    # On meta, so that no random weights are drawn only to be replaced.
    with torch.device("meta"):
        module = TimestepEmbedding(in_channels=channels, time_embed_dim=hidden, out_dim=len(w2))
    names = ("linear_1.weight", "linear_1.bias", "linear_2.weight", "linear_2.bias")
    module.load_state_dict(dict(zip(names, (w1, b1, w2, b2), strict=True)), assign=True)
    return module
