"""A linear layer in Triton with one fixed order: what a batch-invariant kernel costs without the contract's lanes.

The order, its own: every product is IEEE (no TF32); a sum runs over blocks of 32 terms in ascending order, each block's
`tl.dot` added to the accumulator by Triton's own order for a tile of 32 x 64 x 32, which is one constant for all sizes.
Tiles, warps and stages never depend on the number of rows and there is one loop over the terms, so a row has the same
bits alone as in any batch. Rows that a tile lacks are zeros. The bias gradient is the product with a row of ones.

Under Triton's interpreter `tl.dot` is NumPy's matmul, and on some processors its bits depend on a row's place in the
tile (seen on an EPYC with AVX2): what the interpreter returns shows the kernel's steps, not its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from harness.cell.op import Context, Steps, Unavailable

ROWS, COLUMNS, TERMS = 32, 64, 32


@triton.jit
def product_kernel(
    a, b, bias, out, rows, columns, terms, a_row, a_term, b_term, b_column,
    biased: tl.constexpr, row_tile: tl.constexpr, column_tile: tl.constexpr, term_tile: tl.constexpr,
):  # fmt: skip
    """out[i, j] = bias[j] + the sum over r of a[i, r] b[r, j], by the strides of a and b."""
    i = (tl.program_id(0) * row_tile + tl.arange(0, row_tile)).to(tl.int64)
    j = (tl.program_id(1) * column_tile + tl.arange(0, column_tile)).to(tl.int64)
    r = tl.arange(0, term_tile).to(tl.int64)
    total = tl.zeros((row_tile, column_tile), dtype=tl.float32)
    for start in range(0, terms, term_tile):
        there = start + r < terms
        left = tl.load(
            a + i[:, None] * a_row + (start + r)[None, :] * a_term,
            mask=(i < rows)[:, None] & there[None, :], other=0.0,
        )  # fmt: skip
        right = tl.load(
            b + (start + r)[:, None] * b_term + j[None, :] * b_column,
            mask=there[:, None] & (j < columns)[None, :], other=0.0,
        )  # fmt: skip
        total = tl.dot(left, right, total, input_precision="ieee")
    if biased:
        total += tl.load(bias + j, mask=j < columns, other=0.0)[None, :]
    tl.store(out + i[:, None] * columns + j[None, :], total, mask=(i < rows)[:, None] & (j < columns)[None, :])


def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`a b`, plus `bias` on every row: a (I, R), b (R, J), float32, any strides. Raises ValueError."""
    for name, tensor in (("a", a), ("b", b), ("bias", bias)):
        if tensor is not None and tensor.dtype != torch.float32:
            raise ValueError(f"{name} must be float32, not {tensor.dtype}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or 0 in (*a.shape, *b.shape):
        raise ValueError(f"can't multiply shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if bias is not None and bias.shape != (b.shape[1],):
        raise ValueError(f"bias has shape {tuple(bias.shape)}, expected {(b.shape[1],)}")
    if len({tensor.device for tensor in (a, b, bias) if tensor is not None}) != 1:
        raise ValueError("a, b and bias must be on one device")
    rows, terms, columns = a.shape[0], a.shape[1], b.shape[1]
    out = torch.empty((rows, columns), dtype=torch.float32, device=a.device)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS))
    product_kernel[grid](
        a, b, out if bias is None else bias, out, rows, columns, terms, *a.stride(), *b.stride(),
        biased=bias is not None, row_tile=ROWS, column_tile=COLUMNS, term_tile=TERMS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def timestep_mlp(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The whole operator and its gradients: inputs and results by name as op.py declares them."""
    x, w1, w2, upstream = inputs["x"], inputs["w1"], inputs["w2"], inputs["upstream"]
    out, z, s, hidden = _forward(inputs)
    dz = product(upstream, w2) * (s * (1 + z * (1 - s)))
    ones = torch.ones((1, len(x)), dtype=torch.float32, device=x.device)
    return {
        "out": out,
        "grads.x": product(dz, w1),
        "grads.w1": product(dz.t(), x),
        "grads.b1": product(ones, dz)[0],
        "grads.w2": product(upstream.t(), hidden),
        "grads.b2": product(ones, upstream)[0],
    }


def _forward(inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, the pre-activation, its sigmoid and the hidden layer."""
    z = product(inputs["x"], inputs["w1"].t(), inputs["b1"])
    s = torch.sigmoid(z)
    hidden = z * s
    return product(hidden, inputs["w2"].t(), inputs["b2"]), z, s, hidden


def load(context: Context) -> Steps:
    """Forward and backward; FP32 inputs and results as op.py declares them.

    On a CPU only under Triton's interpreter. Raises Unavailable without it.
    """
    if context.device == "cpu" and not triton.knobs.runtime.interpret:
        raise Unavailable("Triton has no compiler for a CPU: set TRITON_INTERPRET=1")

    def place(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(value, device=context.device) for name, value in inputs.items()}

    return Steps(place=place, forward=lambda given: {"out": _forward(given)[0]}, whole=timestep_mlp)
