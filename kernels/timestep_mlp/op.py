"""MiniMax-H3's FP32 timestep embedder: `linear_2(silu(linear_1(x)))` and five gradients.

Shapes and scales are those of the published experiment (RL-Align/RL-Kernel RFC #420); weights are `(out, in)`.
`1 / sqrt` rounds correctly everywhere; a power function need not.
"""

import math

from harness.cell.op import ROWS, Input, Op, Tensor

K, H, N = 256, 5376, 2688
"""in_channels, time_embed_dim, out_dim of diffusers' TimestepEmbedding."""

OP = Op(
    name="timestep_mlp",
    inputs=(
        Input(name="x", shape=(ROWS, K), stream=1),
        Input(name="w1", shape=(H, K), stream=2, scale=1 / math.sqrt(K)),
        Input(name="b1", shape=(H,), stream=3, scale=0.02),
        Input(name="w2", shape=(N, H), stream=4, scale=1 / math.sqrt(H)),
        Input(name="b2", shape=(N,), stream=5, scale=0.02),
        Input(name="upstream", shape=(ROWS, N), stream=6),
    ),
    outputs=(Tensor(name="out", shape=(ROWS, N)),),
    gradients=("x", "w1", "b1", "w2", "b2"),
    upstream=("upstream",),
)
