"""The kernel under test returns the contract's bits, whatever shares its call and whatever state it is called in."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native.build import OP_FOLDER, Kernel, binding, compile_library
from native.exact import nearest_float32

from harness.cell.op import Context, load_module
from harness.workspace import REPOSITORY

Array = npt.NDArray[np.float32]

candidate: Any = load_module(OP_FOLDER / "candidates" / "det_linear.py", "det_linear_candidate")
golden: Any = load_module(OP_FOLDER / "candidates" / "golden.py", "golden_candidate")
reference: Any = load_module(OP_FOLDER / "reference.py", "reference")


@pytest.fixture(scope="session")
def library() -> Path:
    return compile_library()


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return Kernel(request.param)


def same_bits(found: Array, expected: Array) -> bool:
    """Equal bit for bit, any NaN being equal to any other: its payload is no part of the contract."""
    nan = np.isnan(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float32
    return bool((np.isnan(found) == nan).all() and (found.view(np.int32)[~nan] == expected.view(np.int32)[~nan]).all())


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def tiny(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Products of them are subnormal or vanish."""
    return normal(random, shape) * np.float32(2.0**-72)


def wide(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Sums of their products lose most of the smaller ones, and some overflow."""
    return np.ldexp(normal(random, shape), random.integers(-60, 62, shape)).astype(np.float32)


def special(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal numbers with zeros of both signs, and rarely an infinity or a NaN."""
    values = normal(random, shape)
    zeros = random.random(shape) < 0.4
    values[zeros] = np.where(random.random(int(zeros.sum())) < 0.5, np.float32(0), np.float32(-0.0))
    rare = random.random(shape) < 0.3 / shape[-1]
    values[rare] = random.choice(np.array([np.inf, -np.inf, np.nan], dtype=np.float32), int(rare.sum()))
    return values


MAKERS = (normal, tiny, wide, special)

# Chunks that fill no round of lanes, one whole round, one and a bit, many; whole segments and one term more.
INPUTS = st.sampled_from([4, 8, 60, 124, 128, 132, 200, 256, 260, 900, 1796])
OUTPUTS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 129]))


@given(t=st.integers(1, 20), n=OUTPUTS, k=INPUTS, maker=st.sampled_from(MAKERS), seed=st.integers(0, 99))
@example(t=1, n=1, k=4, maker=special, seed=0)
@example(t=97, n=130, k=8, maker=normal, seed=0)  # more than one block of tiles each way
@example(t=4033, n=1, k=4, maker=normal, seed=0)  # more rows than are packed at a time
@settings(max_examples=40)
def test_every_product_has_the_contracts_bits(
    kernel: Kernel, t: int, n: int, k: int, maker: Callable[..., Array], seed: int
) -> None:
    random = np.random.default_rng(seed)
    x, w, g, bias = maker(random, (t, k)), maker(random, (n, k)), maker(random, (t, n)), maker(random, (1, n))[0]
    z = reference.forward(x, w, bias)
    assert same_bits(kernel.forward(x, w, bias), z)
    activated, kept = kernel.forward_silu(x, w, bias)
    assert same_bits(kept, z)
    assert same_bits(activated, reference.silu(z))
    assert same_bits(kernel.input_gradient(g, w), reference.input_gradient(g, w))
    assert same_bits(kernel.weight_gradient(g, x), reference.weight_gradient(g, x))
    assert same_bits(kernel.bias_gradient(g), reference.bias_gradient(g))


@given(bits=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=50))
@settings(max_examples=60)
def test_silu_backward_has_the_contracts_bits_for_any_floats(kernel: Kernel, bits: list[tuple[int, int]]) -> None:
    any_g, any_z = np.array(bits, dtype=np.uint32).T.copy()
    # Most floats saturate the sigmoid; these lie where it bends.
    bent = (any_z.astype(np.float32) - np.float32(2.0**31)) * np.float32(2.0**-27)
    g = np.concatenate([any_g.view(np.float32)] * 2 + [any_g.astype(np.float32)])[np.newaxis]
    z = np.concatenate([any_z.view(np.float32), bent, bent])[np.newaxis]
    assert same_bits(kernel.silu_backward(g, z), reference.silu_backward(g, z))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(a=FLOATS, b=FLOATS, c=FLOATS)
# Rounded to float64 first, the sum is a tie and loses the bit that decides it.
@example(a=1 + 2.0**-12, b=1 + 2.0**-12, c=2.0**-60)
@example(a=-(2.0**-75), b=2.0**-75, c=2.0**-149)
@settings(max_examples=300)
def test_the_references_fma_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    found = reference.fma(*(np.array([value], dtype=np.float32) for value in (a, b, c)))[0]
    assert found == nearest_float32(exact)
    assert exact == 0 or np.signbit(found) == (exact < 0)


SIZES = sorted({*range(1, 10), *(2**power + offset for power in range(4, 12) for offset in (-1, 0, 1))})
"""1 to 9, and 2^k - 1, 2^k and 2^k + 1 up to 2049."""


def test_a_row_has_the_same_bits_alone_as_in_any_batch(kernel: Kernel) -> None:
    random = np.random.default_rng(3)
    rows, n, k = SIZES[-1], 70, 196
    x, w, g, bias = (normal(random, shape) for shape in ((rows, k), (n, k), (rows, n), (n,)))
    y, dx = kernel.forward(x, w, bias), kernel.input_gradient(g, w)
    for size in SIZES:
        for first in {0, int(random.integers(0, rows - size + 1)), rows - size}:
            part = slice(first, first + size)
            assert same_bits(kernel.forward(x[part], w, bias), y[part]), (size, first)
            assert same_bits(kernel.input_gradient(g[part], w), dx[part]), (size, first)
    alone = [slice(row, row + 1) for row in range(rows)]
    assert same_bits(np.concatenate([kernel.forward(x[row], w, bias) for row in alone]), y)
    assert same_bits(np.concatenate([kernel.input_gradient(g[row], w) for row in alone]), dx)


@pytest.mark.gpu
def test_the_operators_rows_keep_their_bits_in_every_batch_at_full_size() -> None:
    bound = Kernel("cuda").bound
    op = load_module(OP_FOLDER / "op.py", "timestep_mlp_op")
    given = bound.memory.place(mlp_inputs(SIZES[-1], op.K, op.H, op.N))
    whole = bound.timestep_mlp(given)

    def same(part: slice) -> bool:
        """Compared where they are: any NaN would differ, and there is none."""
        rows = {name: given[name][part] for name in ("x", "upstream")}
        found = bound.timestep_mlp({**given, **rows})
        return all(bool((found[name] == whole[name][part]).all()) for name in ("out", "grads.x"))

    random = np.random.default_rng(5)
    for size in SIZES:
        for first in {0, int(random.integers(0, SIZES[-1] - size + 1)), SIZES[-1] - size}:
            assert same(slice(first, first + size)), (size, first)
    assert [row for row in range(SIZES[-1]) if not same(slice(row, row + 1))] == []


def test_gradients_repeat_bit_for_bit(kernel: Kernel) -> None:
    inputs = mlp_inputs(t=257, k=64, hidden=260, n=130)
    first = kernel.timestep_mlp(inputs)
    for _ in range(5):
        again = kernel.timestep_mlp(inputs)
        assert all(again[name].tobytes() == first[name].tobytes() for name in first)


def mlp_inputs(t: int = 5, k: int = 64, hidden: int = 132, n: int = 33) -> dict[str, Array]:
    random = np.random.default_rng(7)
    shapes = {"x": (t, k), "w1": (hidden, k), "b1": (hidden,), "w2": (n, hidden), "b2": (n,), "upstream": (t, n)}
    return {name: normal(random, shape) for name, shape in shapes.items()}


def results(library: Path, threads: int, inputs: dict[str, Array]) -> dict[str, Array]:
    loaded: dict[str, Array] = candidate.load(Context(device="cpu", threads=threads, library=library))(inputs)
    return loaded


def test_the_operator_has_the_contracts_bits(kernel: Kernel) -> None:
    for t in (1, 4, 5, 9, 40):
        found, expected = kernel.timestep_mlp(mlp_inputs(t)), reference.timestep_mlp(mlp_inputs(t))
        assert list(found) == list(expected)
        assert [name for name in expected if not same_bits(found[name], expected[name])] == [], t


@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_the_number_of_threads_changes_no_bit(library: Path, threads: int) -> None:
    found, expected = results(library, threads, mlp_inputs(97)), results(library, 5, mlp_inputs(97))
    assert list(found) == list(expected)
    assert all(same_bits(found[name], expected[name]) for name in expected)


def test_the_operator_is_as_accurate_as_float32_allows(library: Path) -> None:
    inputs = mlp_inputs(t=64, k=256, hidden=512, n=128)
    inputs["w1"] *= np.float32(1 / 16)
    inputs["w2"] *= np.float32(1 / 22)
    found = results(library, 2, inputs)
    truth = golden.load(Context(device="cpu", threads=2, library=None))(inputs)
    assert set(truth) == {"out", "grads.x", "grads.w1", "grads.b1", "grads.w2", "grads.b2"}
    for name, expected in truth.items():
        assert expected.dtype == np.float32
        assert np.abs(found[name] - expected).max() < 4e-6 * np.abs(expected).max(), name


def test_the_golden_gradients_are_those_of_the_golden_output() -> None:
    """A central difference in float64 would need the candidate in float64; a large step in FP32 shows the formula."""
    inputs = mlp_inputs(t=2, k=4, hidden=8, n=3)
    run = golden.load(Context(device="cpu", threads=1, library=None))
    gradients = run(inputs)
    for name in ("x", "w1", "b1", "w2", "b2"):
        step = 0.01 * normal(np.random.default_rng(8), inputs[name].shape)
        ahead, behind = (run({**inputs, name: inputs[name] + sign * step})["out"] for sign in (1, -1))
        change = float(np.sum(inputs["upstream"] * (ahead - behind).astype(np.float64))) / 2
        assert change == pytest.approx(float(np.sum(gradients[f"grads.{name}"] * step)), rel=2e-3, abs=1e-5), name


def test_golden_takes_any_pre_activation_without_overflow() -> None:
    inputs = mlp_inputs(t=2, k=4, hidden=8, n=3)
    inputs["b1"][:4] = [1e4, -1e4, 1e30, -1e30]
    found = golden.load(Context(device="cpu", threads=1, library=None))(inputs)
    assert all(np.isfinite(values).all() for values in found.values())


_FENV_BYTES = 64
# Where glibc's fenv_t holds the mode of vector arithmetic, and a mode with other rounding that flushes subnormals.
_MODES = {"x86_64": (28, 0x1F80 | 0x4000 | 0x8040), "aarch64": (0, 1 << 24 | 1 << 22)}
_MODE_BITS = 0xFFFFFFC0


@pytest.fixture
def another_mode() -> Iterator[Callable[[], int]]:
    """The thread's floating-point mode rounds up and flushes subnormals; yields a function that reads the mode."""
    libm = ctypes.CDLL("libm.so.6")
    offset, mode = _MODES[platform.machine()]
    before, changed = ctypes.create_string_buffer(_FENV_BYTES), ctypes.create_string_buffer(_FENV_BYTES)
    libm.fegetenv(before)
    libm.fegetenv(changed)
    ctypes.c_uint32.from_buffer(changed, offset).value = mode

    def read() -> int:
        now = ctypes.create_string_buffer(_FENV_BYTES)
        libm.fegetenv(now)
        return ctypes.c_uint32.from_buffer(now, offset).value & _MODE_BITS

    libm.fesetenv(changed)
    try:
        assert read() == mode & _MODE_BITS
        yield read
    finally:
        libm.fesetenv(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_floating_point_mode_changes_nothing_and_is_restored(
    library: Path, threads: int, request: pytest.FixtureRequest
) -> None:
    random = np.random.default_rng(9)
    x, w, g, bias = (tiny(random, shape) for shape in ((30, 64), (40, 64), (30, 40), (40,)))
    kernel = binding.DetLinear(library, threads)
    calls: tuple[Callable[[], Array], ...] = (
        lambda: kernel.forward(x, w, bias),
        lambda: kernel.input_gradient(g, w),
        lambda: kernel.weight_gradient(g, x),
        lambda: kernel.bias_gradient(g),
        lambda: kernel.silu_backward(g, g),
    )
    expected = [call() for call in calls]
    assert all((np.abs(values[values != 0]) < np.finfo(np.float32).tiny).any() for values in expected[1:3])
    read = request.getfixturevalue("another_mode")
    before = read()
    found = [call() for call in calls]
    assert read() == before
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))


def arrays(**changes: Any) -> dict[str, Any]:
    return {"x": np.ones((2, 8), "f4"), "w": np.ones((3, 8), "f4"), "bias": np.ones(3, "f4"), **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": np.ones((2, 8))}, "x must be a NumPy array of float32"),
        ({"x": np.ones((2, 8), ">f4")}, "x must be a NumPy array of float32 in native byte order"),
        ({"x": [[1.0]]}, "x must be a NumPy array of 2"),
        ({"x": np.ones(8, "f4")}, "x must be a NumPy array of 2"),
        ({"x": np.ones((0, 8), "f4")}, "x is empty"),
        ({"w": np.ones((3, 4), "f4")}, r"w has shape \(3, 4\), expected \(3, 8\)"),
        ({"bias": np.ones(2, "f4")}, r"bias has shape \(2,\), expected \(3,\)"),
        ({"w": np.ones((8, 3), "f4").T}, "w must be contiguous"),
        ({"x": np.ones((2, 6), "f4"), "w": np.ones((3, 6), "f4")}, "K is 6; it must be a multiple of 4"),
        ({"x": np.frombuffer(bytearray(68), "f4")[1:].reshape(2, 8)}, "x is not aligned to 16 bytes"),
    ],
)
def test_arguments_that_are_not_as_declared_are_refused(library: Path, changes: dict[str, Any], words: str) -> None:
    kernel = binding.DetLinear(library, 2)
    with pytest.raises(ValueError, match=words):
        kernel.forward(**arrays(**changes))


def at(array: Array, floats: int = 0) -> int:
    return array.ctypes.data + 4 * floats


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": None}, "x is null"),
        ({"y": None}, "y is null"),
        ({"t": 0}, "T is 0; it must be positive"),
        ({"n": -1}, "N is -1; it must be positive"),
        ({"k": 2**62}, "x would have more elements than fit in memory"),
        ({"activation": 3}, "activation is 3"),
        ({"activation": 1}, "pre is null"),
        ({"pre": at(np.zeros(6, "f4"))}, "pre is given, but there is no activation"),
        ({"threads": 0}, "threads is 0; it must be between 1 and 1024"),
        ({"stream": 16}, "stream is given"),
    ],
)
def test_the_library_refuses_and_writes_nothing(library: Path, changes: dict[str, Any], words: str) -> None:
    kernel = binding.DetLinear(library, 1)
    given = arrays(y=np.full((2, 3), 7, "f4"))
    arguments = {name: at(array) for name, array in given.items()} | {"pre": None, "t": 2, "n": 3, "k": 8}
    arguments |= {"activation": 0, "threads": 1, "stream": None} | changes
    assert kernel._library.det_linear_forward(*arguments.values()) == 1
    assert words in kernel._text("last_error")
    assert (given["y"] == 7).all()


def test_an_output_that_overlaps_an_argument_is_refused(library: Path) -> None:
    kernel = binding.DetLinear(library, 1)
    memory = np.ones(64, "f4")
    refused = kernel._library.det_linear_silu_backward(at(memory), at(memory, 16), at(memory, 15), 4, 4, 1, 1, None)
    assert (refused, kernel._text("last_error")) == (1, "dz is written and overlaps g")
    assert kernel._library.det_linear_silu_backward(at(memory), at(memory), at(memory, 16), 4, 4, 1, 1, None) == 0


def test_a_library_of_another_device_is_refused(library: Path) -> None:
    with pytest.raises(RuntimeError, match="for cpu; wanted is h3-det-linear-v1, ABI version 2, for cuda"):
        candidate.load(Context(device="cuda", threads=1, library=library))


def test_a_library_of_another_abi_is_refused(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "ABI_VERSION", 3)
    with pytest.raises(RuntimeError, match="ABI version 2, for cpu; wanted is h3-det-linear-v1, ABI version 3"):
        binding.DetLinear(library, 1)


# A GPU's library ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bound() -> Any:
    return Kernel("cuda").bound


@pytest.mark.gpu
def test_a_gpus_arguments_that_are_not_as_declared_are_refused(bound: Any) -> None:
    import torch

    def ones(*shape: int, **options: Any) -> Any:
        return torch.ones(shape, device="cuda", **options)

    given = {"x": ones(2, 8), "w": ones(3, 8), "bias": ones(3)}
    for changes, words in (
        ({"x": ones(2, 8, dtype=torch.float64)}, "x must be a torch tensor of float32 on CUDA device 0"),
        ({"x": ones(2, 8).cpu()}, "x must be a torch tensor of float32 on CUDA device 0"),
        ({"x": np.ones((2, 8), "f4")}, "x must be a torch tensor of 2"),
        ({"x": ones(0, 8)}, "x is empty"),
        ({"w": ones(3, 4)}, r"w has shape \(3, 4\), expected \(3, 8\)"),
        ({"w": ones(8, 3).t()}, "w must be contiguous"),
        ({"x": ones(2, 6), "w": ones(3, 6)}, "K is 6; it must be a multiple of 4"),
        ({"x": ones(17)[1:].view(2, 8)}, "x is not aligned to 16 bytes"),
    ):
        with pytest.raises(ValueError, match=words):
            bound.forward(**{**given, **changes})


def refusal(bound: Any, x: int, stream: int | None) -> str:
    """The words with which the forward of x (2, 8) on a stream is refused; nothing may be written."""
    import torch

    w, bias, y = torch.ones((3, 8), device="cuda"), torch.ones(3, device="cuda"), torch.full((2, 3), 7.0, device="cuda")
    pointers = (x, w.data_ptr(), bias.data_ptr(), y.data_ptr(), None)
    assert bound._library.det_linear_forward(*pointers, 2, 3, 8, 0, 1, stream) == 1
    torch.cuda.synchronize()
    assert bool((y == 7).all())
    words: str = bound._text("last_error")
    return words


@pytest.mark.gpu
def test_a_gpus_library_refuses_no_stream_and_memory_that_is_not_a_gpus(bound: Any) -> None:
    import torch

    assert "stream is null" in refusal(bound, torch.ones((2, 8), device="cuda").data_ptr(), None)
    assert refusal(bound, at(np.ones((2, 8), "f4")), 1) == "x is not in a GPU's memory"


STALE = """
import ctypes, sys, torch
from pathlib import Path
from test_det_linear import Kernel, refusal
bound, x = Kernel("cuda").bound, torch.ones((2, 8), device="cuda")
loaded = Path("/proc/self/maps").read_text().splitlines()
runtime = ctypes.CDLL(next(line.split()[-1] for line in loaded if "libcudart" in line))
stale = ctypes.c_void_p()
assert runtime.cudaStreamCreate(ctypes.byref(stale)) == 0
assert runtime.cudaStreamDestroy(stale) == 0
print(refusal(bound, x.data_ptr(), stale.value))
"""


@pytest.mark.gpu
def test_a_gpus_library_computes_nothing_on_a_destroyed_stream() -> None:
    """In a process of its own: CUDA promises nothing of a destroyed handle, and the driver may fault over one."""
    paths = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests", os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-c", STALE],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    refused = "not a living stream" in done.stdout
    faulted = done.returncode == -signal.SIGSEGV and not done.stdout
    assert refused or faulted, done.stderr


@pytest.mark.gpu
def test_a_gpu_works_on_the_callers_stream(bound: Any) -> None:
    import torch

    inputs = bound.memory.place(mlp_inputs(t=64, k=256, hidden=512, n=128))
    expected = bound.timestep_mlp(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # records what is enqueued on its own stream, and refuses what isn't
        found = bound.timestep_mlp(inputs)
    graph.replay()
    torch.cuda.synchronize()
    assert all(bool((found[name] == expected[name]).all()) for name in expected)


@pytest.mark.gpu
def test_the_devices_own_exponential_differs_by_little() -> None:
    """`det_linear` on a GPU takes CUDA's expf: within 2 ULP of the nearest float (CUDA's Math API)."""
    own = binding.DetLinear(compile_library("cuda"), 1, "cuda", binding.SILU)
    x = np.random.default_rng(4).uniform(-87, 88, 1 << 20).astype(np.float32)
    found, expected = own.expf(own.memory.place({"x": x})["x"]).cpu().numpy(), reference.expf(x)
    assert np.abs(found.view(np.int32).astype(np.int64) - expected.view(np.int32)).max() <= 2
