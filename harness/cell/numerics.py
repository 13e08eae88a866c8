"""torch's numeric switches: read, TF32 pinned off, and the thread count checked. Nothing here imports torch."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from harness.cell.attempt import attempt
from harness.cell.op import Unavailable
from harness.cell.status import Failed

_FLAGS = (
    "cuda.matmul.allow_tf32",
    "cudnn.allow_tf32",
    "fp32_precision",
    "cuda.matmul.fp32_precision",
    "cudnn.fp32_precision",
    "cudnn.conv.fp32_precision",
    "mkldnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "cuda.matmul.allow_fp16_accumulation",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
)


def flags() -> dict[str, Any] | None:
    """Every flag of `torch.backends` that can change bits, as torch answers now; None without torch.

    torch refuses to answer some while its old and new TF32 switches contradict each other: that refusal is recorded.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    found = {name: attempt(partial(_flag, torch.backends, name)) for name in _FLAGS}
    return found | {
        "float32_matmul_precision": attempt(torch.get_float32_matmul_precision),
        "deterministic_algorithms": attempt(torch.are_deterministic_algorithms_enabled),
        "preferred_blas_library": attempt(lambda: str(torch.backends.cuda.preferred_blas_library())),
    }


def pin() -> None:
    """Switch TF32 off for matmuls and cuDNN, whatever a mode chose: the published run did the same."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def require_threads(declared: int) -> None:
    """Raise Failed when torch is imported and its thread count, hence its order of sums, isn't the declared one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != declared:
        raise Failed(f"torch uses {torch.get_num_threads()} threads where {declared} are declared")


def require_device(device: str) -> None:
    """Raise Unavailable when the cell is for `cuda` and torch, where it is imported, sees no such device."""
    torch = sys.modules.get("torch")
    if device == "cuda" and torch is not None and not torch.cuda.is_available():
        raise Unavailable(f"torch {torch.__version__} sees no CUDA device")


def _flag(backends: Any, name: str) -> Any:
    value = backends
    for part in name.split("."):
        value = getattr(value, part)
    return value
