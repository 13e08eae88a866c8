"""A test double of NVIDIA's management library, compiled here and loaded as the real one is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "double.c"


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """One GPU of the double. `instances` are MIG instances' UUIDs (None: MIG is off); `pids` what computes there."""

    uuid: str
    name: str = "NVIDIA H200"
    capability: str = "9.0"
    cores: int = 16896
    ecc: bool = True
    instances: tuple[str, ...] | None = None
    pids: tuple[int, ...] = ()
    reasons: int = 0
    fabric: int = 0

    def line(self) -> str:
        """As double.c reads it."""
        major, minor = self.capability.split(".")
        mig = "-" if self.instances is None else "+" + ",".join(self.instances)
        pids = "-" if not self.pids else ",".join(map(str, self.pids))
        fields = (self.uuid, self.name, major, minor, self.cores, int(self.ecc), self.reasons, self.fabric, pids, mig)
        return "|".join(map(str, fields))


def compile_double(folder: Path) -> Path:
    """The folder with the double's libnvidia-ml.so.1."""
    target = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(target), str(SOURCE)], check=True)
    return folder


def environment(
    library: Path, gpus: Sequence[FakeGpu], *, driver: str = "580.95.05", cuda: int = 13000
) -> dict[str, str]:
    """The environment of a process that finds these GPUs and no others."""
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    described = "\n".join(gpu.line() for gpu in gpus)
    return {
        **kept,
        "LD_LIBRARY_PATH": str(library),
        "DOUBLE_GPUS": described,
        "DOUBLE_DRIVER": driver,
        "DOUBLE_CUDA": str(cuda),
    }
