"""Inputs that show how many bits the operator's matrix products keep.

The weights are zero but for single ones, so each probed result is one product, or a sum of two, and exact in FP32.
Hidden units in use get their value from `b1` alone: at 64 and more SiLU returns its argument and its derivative is 1,
both exactly. One call probes both operands and the sum of the forward's second product, the two products behind the
input's gradient, and a weight's gradient.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

K, H, N = 256, 5376, 2688
BITS = 24
LEVEL = np.float32(64)

Array = npt.NDArray[np.float32]
Reading = tuple[str, tuple[int | slice, ...], Array]


def probe(case: int) -> tuple[dict[str, Array], dict[str, Reading]]:
    """Inputs of `case` rows, and readings: path -> result, index into it, and what FP32 returns there.

    The k-th expected number of a path needs k + 1 significant bits.
    """
    # Needs 1 bit (2), 2 bits (1.5), 3 bits (1.25), …, 24 bits (1 + 2**-23).
    numbers = (1 + np.exp2(-np.arange(BITS, dtype=np.float64))).astype(np.float32)
    operand, weight, total, back = (slice(BITS * part, BITS * part + BITS) for part in range(4))
    unit = np.arange(BITS)
    b1, w1, w2 = np.zeros(H, np.float32), np.zeros((H, K), np.float32), np.zeros((N, H), np.float32)
    b1[operand] = LEVEL * numbers
    w2[unit, unit] = 1
    # Two units with the same value; the number is one unit's weight, or the sum over both.
    first, second = 2 * BITS, 2 * BITS + 1
    b1[[first, second]] = LEVEL
    w2[weight, first] = numbers
    w2[total, first] = 1
    w2[total, second] = numbers - 1
    # The gradient runs back through one weight of each product to x, and meets `first` in w2's gradient.
    b1[back] = LEVEL
    w2[BITS * 3 + unit, BITS * 3 + unit] = 1
    w1[BITS * 3 + unit, unit] = 1
    upstream = np.zeros((case, N), np.float32)
    upstream[0, back] = numbers
    inputs = {
        "x": np.zeros((case, K), np.float32),
        "w1": w1,
        "b1": b1,
        "w2": w2,
        "b2": np.zeros(N, np.float32),
        "upstream": upstream,
    }
    scaled = LEVEL * numbers
    return inputs, {
        "forward operand": ("out", (0, operand), scaled),
        "forward weight": ("out", (0, weight), scaled),
        "forward sum": ("out", (0, total), scaled),
        "input gradient": ("grads.x", (0, slice(0, BITS)), numbers),
        "weight gradient": ("grads.w2", (back, first), scaled),
    }
