"""Checks of the candidate det_linear_triton under Triton's interpreter, run in an image that holds torch and Triton.

TRITON_INTERPRET=1 python -m cell.triton_checks
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

from harness.cell.op import Context, load_module

OP_FOLDER = Path(__file__).parents[2] / "kernels" / "timestep_mlp"
candidate: Any = load_module(OP_FOLDER / "candidates" / "det_linear_triton.py", "det_linear_triton")
exact: Any = load_module(OP_FOLDER / "exact.py", "exact").exact
STEPS = candidate.load(Context(device="cpu", threads=1, library=None))


def inputs(t: int, k: int = 60, hidden: int = 132, n: int = 33) -> dict[str, Any]:
    random = np.random.default_rng(7)
    shapes = {"x": (t, k), "w1": (hidden, k), "b1": (hidden,), "w2": (n, hidden), "b2": (n,), "upstream": (t, n)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check_the_operator_is_as_accurate_as_float32_allows() -> None:
    for t in (1, 5, 70):
        given = inputs(t)
        found, truth = STEPS(given), exact(given)
        assert found.keys() == truth.keys()
        for name, expected in truth.items():
            off = np.abs(found[name].numpy() - expected).max() / np.abs(expected).max()
            assert off < 4e-6, (t, name, off)
        assert torch.equal(STEPS.forward(STEPS.place(given))["out"], found["out"])


def check_a_row_has_the_same_bits_alone_as_in_any_batch() -> None:
    """With a product of tiles that keeps it: NumPy's, which the interpreter takes, doesn't on every processor."""
    given = inputs(70)
    with mock.patch.object(np, "matmul", side_effect=ascending) as product:
        whole = STEPS(given)
        assert product.called
        for rows in (slice(0, 1), slice(31, 34), slice(5, 69), slice(69, 70)):
            found = STEPS({**given, "x": given["x"][rows], "upstream": given["upstream"][rows]})
            for name in ("out", "grads.x"):
                assert torch.equal(found[name], whole[name][rows]), (rows, name)


def ascending(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    """`a b` in one order of terms wherever a row stands: (I, R), (R, J) -> (I, J)."""
    total = np.zeros((len(a), b.shape[1]), dtype)
    for term in range(len(b)):
        total += a[:, term : term + 1] * b[term]
    return total


def check_arguments_that_are_not_as_declared_are_refused() -> None:
    a, b = torch.ones(2, 4), torch.ones(4, 3)
    for arguments, words in (
        ((a.double(), b), "a must be float32"),
        ((a, torch.ones(5, 3)), "can't multiply"),
        ((torch.ones(0, 4), b), "can't multiply"),
        ((a, b, torch.ones(2)), "bias has shape"),
    ):
        assert words in refusal(arguments), words


def refusal(arguments: tuple[torch.Tensor, ...]) -> str:
    """The words of the ValueError that `product` raises; empty when it raises none."""
    try:
        candidate.product(*arguments)
    except ValueError as error:
        return str(error)
    return ""


def main() -> int:
    """Run every check; 0 when all hold."""
    for name, check in [*globals().items()]:
        if name.startswith("check_"):
            check()
    return 0


if __name__ == "__main__":
    sys.exit(main())
