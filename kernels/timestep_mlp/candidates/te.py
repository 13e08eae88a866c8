"""Transformer Engine's own `Linear` in FP32: `linear_2(silu(linear_1(x)))`, in whatever mode is on."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from transformer_engine.pytorch import Linear

from harness.cell.op import Context, Steps, Unavailable

_WEIGHTS = ("w1", "b1", "w2", "b2")


def load(context: Context) -> Steps:
    """Forward and backward, FP32 as op.py declares it. Raises Unavailable on a device other than cuda."""
    if context.device != "cuda":
        raise Unavailable("Transformer Engine runs on cuda alone")

    def place(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}

    return Steps(place=place, forward=_forward, whole=_whole)


@torch.no_grad()
def _forward(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first, second = _linears(*(given[name] for name in _WEIGHTS))
    return {"out": second(torch.nn.functional.silu(first(given["x"])))}


def _whole(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    first, second = _linears(*(given[name] for name in _WEIGHTS))
    for layer in (first, second):
        layer.zero_grad(set_to_none=True)
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


@functools.lru_cache(maxsize=1)
def _linears(w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> tuple[Linear, Linear]:
    """The layers of these very tensors: made once for all calls, as in training, so that calls alone are timed."""
    return _linear(w1, b1), _linear(w2, b2)


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> Linear:
    features, channels = weight.shape
    layer = Linear(channels, features, bias=True, params_dtype=weight.dtype, device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    return layer
