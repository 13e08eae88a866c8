"""The contract's compiled library (src/det_linear.h) on NumPy arrays, or on torch tensors of a GPU.

The one place that knows the C ABI. torch is imported only for a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness.cell.op import Context, Steps, Unavailable

CONTRACT = "h3-det-linear-v1"
ABI_VERSION = 2

Array = Any
"""A NumPy array for the CPU's library, a torch tensor for a GPU's."""

NONE, SILU, PORTABLE = 0, 1, 2
"""Activations: none; SiLU with the device's own expf; SiLU with the nearest float to the exponential."""

_LEGACY_STREAM = 1
"""cudaStreamLegacy: the stream that torch numbers 0, by its own name."""
_BAD_ARGUMENT = 1
_MATRIX, _SIZE, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_WHERE = [_NUMBER, ctypes.c_void_p]
_ARGUMENTS = {
    "forward": [_MATRIX] * 5 + [_SIZE] * 3 + [_NUMBER, *_WHERE],
    "input_gradient": [_MATRIX] * 3 + [_SIZE] * 3 + _WHERE,
    "weight_gradient": [_MATRIX] * 3 + [_SIZE] * 3 + _WHERE,
    "bias_gradient": [_MATRIX] * 2 + [_SIZE] * 2 + _WHERE,
    "silu_backward": [_MATRIX] * 3 + [_SIZE] * 2 + [_NUMBER, *_WHERE],
    "mlp_forward": [_MATRIX] * 8 + [_SIZE] * 4 + [_NUMBER, *_WHERE],
    "mlp_backward": [_MATRIX] * 13 + [_SIZE] * 4 + [_NUMBER, *_WHERE],
    "expf": [_MATRIX] * 2 + [_SIZE, _NUMBER, *_WHERE],
}
_TEXTS = ("contract", "device", "unavailable", "last_error")


class DetLinear:
    """The library's functions: float32, C order; x (T, K), w (N, K), g and z (T, N).

    Every method returns new arrays. On a GPU the work is enqueued on torch's current stream. Raises ValueError for an
    argument that isn't as it says, before anything is computed, and RuntimeError when the system has no memory or
    thread to give, or CUDA fails.
    """

    def __init__(self, library: Path, threads: int, device: str = "cpu", silu: int = SILU) -> None:
        """Load `library` for `device`, with up to `threads` threads on a CPU; `silu` is SILU or PORTABLE.

        Raises Unavailable when this machine can't run it, RuntimeError when it isn't the contract's library for it.
        """
        self._library = ctypes.CDLL(str(library))
        self._threads = threads
        self._silu = silu
        for name in _TEXTS:
            getattr(self._library, f"det_linear_{name}").restype = ctypes.c_char_p
        self._functions = {name: getattr(self._library, f"det_linear_{name}") for name in _ARGUMENTS}
        for name, arguments in _ARGUMENTS.items():
            self._functions[name].argtypes = arguments
        found = (self._text("contract"), self._library.det_linear_abi_version(), self._text("device"))
        if found != (CONTRACT, ABI_VERSION, device):
            raise RuntimeError(
                f"{library} is {found[0]}, ABI version {found[1]}, for {found[2]}; "
                f"wanted is {CONTRACT}, ABI version {ABI_VERSION}, for {device}: compile it from these sources"
            )
        if reason := self._text("unavailable"):
            raise Unavailable(f"{CONTRACT} can't run here: {reason}")
        self.memory: _Host | _Gpu = _Host() if device == "cpu" else _Gpu()

    def forward(self, x: Array, w: Array, bias: Array) -> Array:
        """`bias + x w^T`, (T, N)."""
        (t, k), (n, _) = self._shape("x", x, 2), self._shape("w", w, 2)
        self._check((("x", x, (t, k)), ("w", w, (n, k)), ("bias", bias, (n,))))
        y = self.memory.empty((t, n))
        self._call("forward", (x, w, bias, y), None, t, n, k, NONE)
        return y

    def forward_silu(self, x: Array, w: Array, bias: Array) -> tuple[Array, Array]:
        """`silu(z)` and `z = bias + x w^T`, both (T, N)."""
        (t, k), (n, _) = self._shape("x", x, 2), self._shape("w", w, 2)
        self._check((("x", x, (t, k)), ("w", w, (n, k)), ("bias", bias, (n,))))
        y, z = self.memory.empty((t, n)), self.memory.empty((t, n))
        self._call("forward", (x, w, bias, y, z), t, n, k, self._silu)
        return y, z

    def input_gradient(self, g: Array, w: Array) -> Array:
        """`g w`, (T, K)."""
        (t, n), (_, k) = self._shape("g", g, 2), self._shape("w", w, 2)
        self._check((("g", g, (t, n)), ("w", w, (n, k))))
        dx = self.memory.empty((t, k))
        self._call("input_gradient", (g, w, dx), t, n, k)
        return dx

    def weight_gradient(self, g: Array, x: Array) -> Array:
        """`g^T x`, (N, K)."""
        (t, n), (_, k) = self._shape("g", g, 2), self._shape("x", x, 2)
        self._check((("g", g, (t, n)), ("x", x, (t, k))))
        dw = self.memory.empty((n, k))
        self._call("weight_gradient", (g, x, dw), t, n, k)
        return dw

    def bias_gradient(self, g: Array) -> Array:
        """The sum of g's rows, (N,)."""
        t, n = self._shape("g", g, 2)
        self._check((("g", g, (t, n)),))
        db = self.memory.empty((n,))
        self._call("bias_gradient", (g, db), t, n)
        return db

    def silu_backward(self, g: Array, z: Array) -> Array:
        """`g silu'(z)`, (T, N)."""
        t, n = self._shape("g", g, 2)
        self._check((("g", g, (t, n)), ("z", z, (t, n))))
        dz = self.memory.empty((t, n))
        self._call("silu_backward", (g, z, dz), t, n, self._silu)
        return dz

    def expf(self, x: Array) -> Array:
        """The exponential that SiLU uses, of a vector."""
        (count,) = self._shape("x", x, 1)
        self._check((("x", x, (count,)),))
        y = self.memory.empty((count,))
        self._call("expf", (x, y), count, self._silu)
        return y

    def timestep_mlp(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The whole operator and its gradients: inputs and results by name as op.py declares them."""
        out, kept = self.mlp_forward(inputs)
        return {"out": out, **self.mlp_backward(inputs, kept)}

    def mlp_forward(self, inputs: Mapping[str, Array]) -> tuple[Array, tuple[Array, Array]]:
        """The output (T, N), and what the gradients need: the pre-activation and the hidden layer, both (T, H)."""
        (t, k), (h, _), (n, _) = (self._shape(name, inputs[name], 2) for name in ("x", "w1", "w2"))
        arrays = tuple(inputs[name] for name in ("x", "w1", "b1", "w2", "b2"))
        shapes = ((t, k), (h, k), (h,), (n, h), (n,))
        self._check(zip(("x", "w1", "b1", "w2", "b2"), arrays, shapes, strict=True))
        empty = self.memory.empty
        z, hidden, out = empty((t, h)), empty((t, h)), empty((t, n))
        self._call("mlp_forward", (*arrays, z, hidden, out), t, k, h, n, self._silu)
        return out, (z, hidden)

    def mlp_backward(self, inputs: Mapping[str, Array], kept: tuple[Array, Array]) -> dict[str, Array]:
        """Every gradient as `grads.<input>`; `kept` is what `mlp_forward` gave for the same inputs."""
        (t, k), (h, _), (n, _) = (self._shape(name, inputs[name], 2) for name in ("x", "w1", "w2"))
        arrays = (*(inputs[name] for name in ("upstream", "x", "w1", "w2")), *kept)
        shapes = ((t, n), (t, k), (h, k), (n, h), (t, h), (t, h))
        self._check(zip(("upstream", "x", "w1", "w2", "z", "hidden"), arrays, shapes, strict=True))
        empty = self.memory.empty
        dx, dw1, db1, dw2, db2 = empty((t, k)), empty((h, k)), empty((h,)), empty((n, h)), empty((n,))
        inner = empty((t, h)), empty((t, h))
        self._call("mlp_backward", (*arrays, dx, dw1, db1, dw2, db2, *inner), t, k, h, n, self._silu)
        return {"grads.x": dx, "grads.w1": dw1, "grads.b1": db1, "grads.w2": dw2, "grads.b2": db2}

    def _call(self, name: str, arrays: tuple[Array, ...], *numbers: int | None) -> None:
        memory = self.memory
        code = self._functions[name](*map(memory.pointer, arrays), *numbers, self._threads, memory.stream())
        if code:
            error = ValueError if code == _BAD_ARGUMENT else RuntimeError
            raise error(f"{CONTRACT}, {name}: {self._text('last_error')}")

    def _text(self, name: str) -> str:
        return (getattr(self._library, f"det_linear_{name}")() or b"").decode()

    def _shape(self, name: str, array: Array, dimensions: int) -> tuple[int, ...]:
        if not isinstance(array, self.memory.array) or array.ndim != dimensions:
            raise ValueError(f"{name} must be a {self.memory.noun} of {dimensions} dimension(s)")
        shape: tuple[int, ...] = array.shape
        return shape

    def _check(self, arrays: Iterable[tuple[str, Array, tuple[int, ...]]]) -> None:
        """Raise ValueError unless every array is a non-empty float32 array in C order with the shape beside it."""
        memory = self.memory
        for name, array, shape in arrays:
            if not isinstance(array, memory.array) or not memory.is_float32(array):
                raise ValueError(f"{name} must be a {memory.noun} of {memory.kind}")
            if array.shape != shape:
                raise ValueError(f"{name} has shape {tuple(array.shape)}, expected {tuple(shape)}")
            if 0 in shape:
                raise ValueError(f"{name} is empty: its shape is {tuple(shape)}")
            if not memory.is_contiguous(array):
                raise ValueError(f"{name} must be contiguous, in C order")


class _Host:
    """Arrays of NumPy."""

    array: Any = np.ndarray
    noun = "NumPy array"
    kind = "float32 in native byte order"

    def place(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        return dict(inputs)

    def is_float32(self, array: Any) -> bool:
        return bool(array.dtype == np.dtype("=f4"))

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous)

    def empty(self, shape: tuple[int, ...]) -> Array:
        return np.empty(shape, dtype=np.float32)

    def pointer(self, array: Any) -> int:
        return int(array.ctypes.data)

    def stream(self) -> None:
        return None


class _Gpu:
    """Tensors of torch on the CUDA device that was current at first.

    A small batch takes the GPU some 10 us a call, less than careless checks of its arguments would take.
    """

    noun = "torch tensor"

    def __init__(self) -> None:
        import torch

        self.array: Any = torch.Tensor
        self.kind = f"float32 on CUDA device {torch.cuda.current_device()}"
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._float32 = torch.float32
        self._empty = torch.empty
        self._tensor = torch.tensor
        self._stream = torch.cuda.current_stream

    def place(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        return {name: self._tensor(value, device=self._device) for name, value in inputs.items()}

    def is_float32(self, array: Any) -> bool:
        return array.dtype is self._float32 and array.device == self._device

    def is_contiguous(self, array: Any) -> bool:
        contiguous: bool = array.is_contiguous()
        return contiguous

    def empty(self, shape: tuple[int, ...]) -> Array:
        return self._empty(shape, dtype=self._float32, device=self._device)

    def pointer(self, array: Any) -> int:
        pointer: int = array.data_ptr()
        return pointer

    def stream(self) -> int:
        stream: int = self._stream(self._device).cuda_stream
        return stream or _LEGACY_STREAM


def load(context: Context, silu: int) -> Steps:
    """Forward and backward with that SiLU; FP32 inputs and results as op.py declares them.

    Raises Unavailable on a machine that can't run the library of the context's device.
    """
    if context.library is None:
        raise RuntimeError("det_linear runs the op's kernel library: declare it with `library: true`")
    kernel = DetLinear(context.library, context.threads, context.device, silu)
    return Steps(
        place=kernel.memory.place,
        forward=lambda placed: {"out": kernel.mlp_forward(placed)[0]},
        whole=kernel.timestep_mlp,
    )
