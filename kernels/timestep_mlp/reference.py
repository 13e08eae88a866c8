"""The contract `h3-det-linear-v1`, slowly and obviously: what every kernel of it must return, bit for bit.

Written to be read beside docs/contract.md, in NumPy alone and independent of the C++. Arrays are float32; matrices are
`(rows, columns)`: x (T, K), w (N, K), g and z (T, N). Outputs are computed side by side, but no operation mixes two of
them: each line below is one rounding of each output element. A NaN has no defined payload.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

CHUNK = 4
"""Floats of a row that belong together in the forward's order: 16 bytes."""
LANES = 32
"""Accumulators of the forward's order."""
SEGMENT = 64
"""Terms of one partial sum of the input gradient."""


def fma(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` with one rounding, as IEEE 754 has it.

    In float64 the product of two float32 is exact, but the sum isn't, and rounding it twice can differ from
    rounding it once. So the sum is rounded to odd: what was lost stays visible in the last bit, and with more than two
    spare bits the second rounding is right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = np.broadcast_to(c.astype(np.float64), product.shape)
        total = product + addend
        # Knuth's TwoSum: total + lost is exactly product + addend.
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        inexact = np.isfinite(total) & (lost != 0)
        even = (total.view(np.int64) & 1) == 0
        odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
        return np.where(inexact & even, odd, total).astype(np.float32)


def expf(x: Array) -> Array:
    """The float32 nearest to exp(x): from a format with at least 11 bits more than float64, rounded once.

    Raises NotImplementedError where NumPy's longdouble is no wider than float64.
    """
    if np.finfo(np.longdouble).nmant < 63:
        raise NotImplementedError("this machine has no long double wider than float64 to take exponentials in")
    with np.errstate(all="ignore"):
        return np.exp(x.astype(np.longdouble)).astype(np.float32)


def forward(x: Array, w: Array, bias: Array) -> Array:
    """`bias + x w^T`, (T, N): 32 lanes, each a chain of fma over its chunks, then a butterfly of additions."""
    chunks = range(x.shape[1] // CHUNK)
    lanes = []
    for lane in range(LANES):
        mine = (CHUNK * chunk + i for chunk in chunks[lane::LANES] for i in range(CHUNK))
        lanes.append(_chain(x, w.T, list(mine)))
    with np.errstate(all="ignore"):
        for offset in (16, 8, 4, 2, 1):
            lanes = [lanes[lane] + lanes[lane ^ offset] for lane in range(LANES)]
        return bias + lanes[0]


def silu(v: Array) -> Array:
    """`v / (1 + expf(-v))`."""
    with np.errstate(all="ignore"):
        return v / (np.float32(1) + expf(-v))


def silu_backward(g: Array, z: Array) -> Array:
    """`g * (s * (1 + z * (1 - s)))` with `s = 1 / (1 + expf(-z))`, every operation rounded."""
    one = np.ones_like(z)
    with np.errstate(all="ignore"):
        s: Array = one / (one + expf(-z))
        return g * (s * (one + z * (one - s)))


def input_gradient(g: Array, w: Array) -> Array:
    """`g w`, (T, K): chains of 64 terms, their sums added from left to right."""
    terms = list(range(g.shape[1]))
    sums = [_chain(g, w, terms[start : start + SEGMENT]) for start in range(0, len(terms), SEGMENT)]
    total = sums[0]
    with np.errstate(all="ignore"):
        for partial in sums[1:]:
            total = total + partial
    return total


def weight_gradient(g: Array, x: Array) -> Array:
    """`g^T x`, (N, K): one chain over the rows."""
    return _chain(g.T, x, list(range(len(g))))


def bias_gradient(g: Array) -> Array:
    """The sum of the rows, (N,): additions from 0, row by row."""
    total = np.zeros(g.shape[1], dtype=np.float32)
    with np.errstate(all="ignore"):
        for row in g:
            total = total + row
    return total


def timestep_mlp(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The whole operator: inputs by name as op.py declares them, results by name as a candidate returns them."""
    x, w1, w2, upstream = inputs["x"], inputs["w1"], inputs["w2"], inputs["upstream"]
    z = forward(x, w1, inputs["b1"])
    hidden = silu(z)
    dz = silu_backward(input_gradient(upstream, w2), z)
    return {
        "out": forward(hidden, w2, inputs["b2"]),
        "grads.x": input_gradient(dz, w1),
        "grads.w1": weight_gradient(dz, x),
        "grads.b1": bias_gradient(dz),
        "grads.w2": weight_gradient(upstream, hidden),
        "grads.b2": bias_gradient(upstream),
    }


def _chain(a: Array, b: Array, terms: list[int]) -> Array:
    """One fma chain from 0 for each pair of a row of `a` and a column of `b`, over `terms` in their order."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    for term in terms:
        total = fma(a[:, term, np.newaxis], b[np.newaxis, term, :], total)
    return total
