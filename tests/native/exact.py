"""Exact arithmetic that tests measure rounding by."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

_OVERFLOW = Fraction(2) ** 128
"""Where the next float32 would be, were there no infinity: halfway to it rounding overflows."""


def nearest_float32(exact: Fraction) -> np.float32:
    """The float32 nearest to a number, ties to even; zero is positive."""
    with np.errstate(over="ignore"):
        guess = np.float32(float(exact)) if abs(exact) < _OVERFLOW else np.float32(np.inf if exact > 0 else -np.inf)
        candidates = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]

    def merit(value: np.float32) -> tuple[Fraction, int]:
        return abs(_as_fraction(value) - exact), int(value.view(np.uint32)) & 1

    return min(candidates, key=merit)


def _as_fraction(value: np.float32) -> Fraction:
    if np.isinf(value):
        return _OVERFLOW if value > 0 else -_OVERFLOW
    return Fraction(float(value))
