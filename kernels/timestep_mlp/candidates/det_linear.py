"""The kernel under test: contract h3-det-linear-v1 from the op's compiled library (src/det_linear.h), on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell.op import Context, Steps, Unavailable

CONTRACT = "h3-det-linear-v1"
ABI_VERSION = 1

Array = npt.NDArray[np.float32]

_NONE, _SILU = 0, 1
_BAD_ARGUMENT = 1
_MATRIX, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_WHERE = [_NUMBER, ctypes.c_void_p]
_ARGUMENTS = {
    "forward": [_MATRIX] * 5 + [_SIZE] * 3 + [_NUMBER, *_WHERE],
    "input_gradient": [_MATRIX] * 3 + [_SIZE] * 3 + _WHERE,
    "weight_gradient": [_MATRIX] * 3 + [_SIZE] * 3 + _WHERE,
    "bias_gradient": [_MATRIX] * 2 + [_SIZE] * 2 + _WHERE,
    "silu_backward": [_MATRIX] * 3 + [_SIZE] * 2 + _WHERE,
    "expf": [_MATRIX] * 2 + [_SIZE, *_WHERE],
}
_TEXTS = ("contract", "device", "unavailable", "last_error")


class DetLinear:
    """The library's functions on NumPy arrays: float32, C order; x (T, K), w (N, K), g and z (T, N).

    Every method returns new arrays. Raises ValueError for an argument that isn't as it says, before anything is
    computed, and RuntimeError when the system has no memory or thread to give.
    """

    def __init__(self, library: Path, threads: int) -> None:
        """Load `library` for up to `threads` threads.

        Raises Unavailable when this machine can't run it, RuntimeError when it isn't the contract's CPU library.
        """
        self._library = ctypes.CDLL(str(library))
        self._threads = threads
        for name in _TEXTS:
            getattr(self._library, f"det_linear_{name}").restype = ctypes.c_char_p
        for name, arguments in _ARGUMENTS.items():
            getattr(self._library, f"det_linear_{name}").argtypes = arguments
        found = (self._text("contract"), self._library.det_linear_abi_version(), self._text("device"))
        if found != (CONTRACT, ABI_VERSION, "cpu"):
            raise RuntimeError(
                f"{library} is {found[0]}, ABI version {found[1]}, for {found[2]}; "
                f"wanted is {CONTRACT}, ABI version {ABI_VERSION}, for cpu: compile it from these sources"
            )
        if reason := self._text("unavailable"):
            raise Unavailable(f"{CONTRACT} can't run here: {reason}")

    def forward(self, x: Array, w: Array, bias: Array) -> Array:
        """`bias + x w^T`, (T, N)."""
        (t, k), (n, _) = _shape("x", x, 2), _shape("w", w, 2)
        _check(x=(x, (t, k)), w=(w, (n, k)), bias=(bias, (n,)))
        y = _empty(t, n)
        self._call("forward", x, w, bias, y, None, t, n, k, _NONE)
        return y

    def forward_silu(self, x: Array, w: Array, bias: Array) -> tuple[Array, Array]:
        """`silu(z)` and `z = bias + x w^T`, both (T, N)."""
        (t, k), (n, _) = _shape("x", x, 2), _shape("w", w, 2)
        _check(x=(x, (t, k)), w=(w, (n, k)), bias=(bias, (n,)))
        y, z = _empty(t, n), _empty(t, n)
        self._call("forward", x, w, bias, y, z, t, n, k, _SILU)
        return y, z

    def input_gradient(self, g: Array, w: Array) -> Array:
        """`g w`, (T, K)."""
        (t, n), (_, k) = _shape("g", g, 2), _shape("w", w, 2)
        _check(g=(g, (t, n)), w=(w, (n, k)))
        dx = _empty(t, k)
        self._call("input_gradient", g, w, dx, t, n, k)
        return dx

    def weight_gradient(self, g: Array, x: Array) -> Array:
        """`g^T x`, (N, K)."""
        (t, n), (_, k) = _shape("g", g, 2), _shape("x", x, 2)
        _check(g=(g, (t, n)), x=(x, (t, k)))
        dw = _empty(n, k)
        self._call("weight_gradient", g, x, dw, t, n, k)
        return dw

    def bias_gradient(self, g: Array) -> Array:
        """The sum of g's rows, (N,)."""
        t, n = _shape("g", g, 2)
        _check(g=(g, (t, n)))
        db = _empty(n)
        self._call("bias_gradient", g, db, t, n)
        return db

    def silu_backward(self, g: Array, z: Array) -> Array:
        """`g silu'(z)`, (T, N)."""
        t, n = _shape("g", g, 2)
        _check(g=(g, (t, n)), z=(z, (t, n)))
        dz = _empty(t, n)
        self._call("silu_backward", g, z, dz, t, n)
        return dz

    def expf(self, x: Array) -> Array:
        """The exponential that SiLU uses, of a vector."""
        (count,) = _shape("x", x, 1)
        _check(x=(x, (count,)))
        y = _empty(count)
        self._call("expf", x, y, count)
        return y

    def _call(self, name: str, *arguments: Array | int | None) -> None:
        plain = [value.ctypes.data if isinstance(value, np.ndarray) else value for value in arguments]
        code = getattr(self._library, f"det_linear_{name}")(*plain, self._threads, None)
        if code:
            error = ValueError if code == _BAD_ARGUMENT else RuntimeError
            raise error(f"{CONTRACT}, {name}: {self._text('last_error')}")

    def _text(self, name: str) -> str:
        return (getattr(self._library, f"det_linear_{name}")() or b"").decode()


def load(context: Context) -> Steps:
    """Forward and backward; FP32 inputs and results as op.py declares them.

    Raises Unavailable on another device than a CPU, or on a CPU without the library's instructions.
    """
    if context.device != "cpu":
        raise Unavailable(f"{CONTRACT} has no library for {context.device}")
    if context.library is None:
        raise RuntimeError("det_linear runs the op's kernel library: declare it with `library: true`")
    kernel = DetLinear(context.library, context.threads)

    def forward(inputs: Mapping[str, Any]) -> dict[str, Array]:
        hidden, _ = kernel.forward_silu(inputs["x"], inputs["w1"], inputs["b1"])
        return {"out": kernel.forward(hidden, inputs["w2"], inputs["b2"])}

    def whole(inputs: Mapping[str, Any]) -> dict[str, Array]:
        x, w1, w2, upstream = inputs["x"], inputs["w1"], inputs["w2"], inputs["upstream"]
        hidden, z = kernel.forward_silu(x, w1, inputs["b1"])
        out = kernel.forward(hidden, w2, inputs["b2"])
        dz = kernel.silu_backward(kernel.input_gradient(upstream, w2), z)
        return {
            "out": out,
            "grads.x": kernel.input_gradient(dz, w1),
            "grads.w1": kernel.weight_gradient(dz, x),
            "grads.b1": kernel.bias_gradient(dz),
            "grads.w2": kernel.weight_gradient(upstream, hidden),
            "grads.b2": kernel.bias_gradient(upstream),
        }

    return Steps(place=dict, forward=forward, whole=whole)


def _empty(*shape: int) -> Array:
    return np.empty(shape, dtype=np.float32)


def _shape(name: str, array: Any, dimensions: int) -> tuple[int, ...]:
    if not isinstance(array, np.ndarray) or array.ndim != dimensions:
        raise ValueError(f"{name} must be a NumPy array of {dimensions} dimension(s)")
    return tuple(array.shape)


def _check(**arrays: tuple[Any, tuple[int, ...]]) -> None:
    """Raise ValueError unless every array is a non-empty float32 array in C order with the shape beside it."""
    for name, (array, shape) in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.dtype("=f4"):
            raise ValueError(f"{name} must be a NumPy array of float32 in native byte order")
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
        if array.size == 0:
            raise ValueError(f"{name} is empty: its shape is {shape}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} must be contiguous, in C order")
