"""RL-Kernel's own H3 timestep MLP on CUDA, contract h3-det-linear-v1: the published run's kernel under test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from rl_engine.kernels.ops.cuda.h3.timestep_mlp import H3TimestepMLPCudaOp

from harness.cell.op import Context, Steps, Unavailable

_ARGUMENTS = ("x", "w1", "b1", "w2", "b2")


def load(context: Context) -> Steps:
    """Forward and backward through autograd, FP32. Raises Unavailable on a device other than cuda."""
    if context.device != "cuda":
        raise Unavailable("RL-Kernel's H3 operator runs on cuda alone")
    operator = H3TimestepMLPCudaOp()

    def place(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}

    def forward(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"out": operator(*(given[name] for name in _ARGUMENTS))}

    def whole(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        leaves = {name: given[name].detach().requires_grad_() for name in _ARGUMENTS}
        out = operator(*leaves.values())
        out.backward(given["upstream"])
        return {"out": out} | {f"grads.{name}": leaf.grad for name, leaf in leaves.items()}

    return Steps(place=place, forward=forward, whole=whole)
