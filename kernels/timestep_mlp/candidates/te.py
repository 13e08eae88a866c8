"""Transformer Engine's own `Linear` in FP32: `linear_2(silu(linear_1(x)))`, in whatever mode is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformer_engine.pytorch import Linear

from harness.cell.op import Context, Steps, Unavailable


def load(context: Context) -> Steps:
    """Forward and backward, FP32 as op.py declares it. Raises Unavailable on a device other than cuda."""
    if context.device != "cuda":
        raise Unavailable("Transformer Engine runs on cuda alone")

    def place(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}

    return Steps(place=place, forward=_forward, whole=_whole)


def _forward(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first, second = _linear(given["w1"], given["b1"]), _linear(given["w2"], given["b2"])
    return {"out": second(torch.nn.functional.silu(first(given["x"])))}


def _whole(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first, second = _linear(given["w1"], given["b1"]), _linear(given["w2"], given["b2"])
    x = given["x"].detach().requires_grad_()
    out = second(torch.nn.functional.silu(first(x)))
    out.backward(given["upstream"])
    return {
        "out": out,
        "grads.x": x.grad,
        "grads.w1": first.weight.grad,
        "grads.b1": first.bias.grad,
        "grads.w2": second.weight.grad,
        "grads.b2": second.bias.grad,
    }


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> Linear:
    features, channels = weight.shape
    layer = Linear(channels, features, bias=True, params_dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
