"""The device as the host sees it: what captures must share to stand in one table."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import gpu
from harness.errors import BadInput
from harness.gpu import Gpu
from harness.matrix import DeviceName


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """Model and driver, as texts. `features` is a hash of the CPU's flags: another set, other code paths."""

    kind: DeviceName
    architecture: str
    model: str
    features: str | None
    driver: str | None
    capability: str | None = None
    """A GPU's compute capability, e.g. "9.0"; so `cores`, `mig` and `ecc` are a GPU's alone."""
    cores: str | None = None
    mig: str | None = None
    ecc: str | None = None


def default() -> DeviceName:
    """`cuda` where an NVIDIA driver is loaded, else `cpu`."""
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def describe(kind: DeviceName, gpus: Sequence[Gpu] = ()) -> DeviceFacts:
    """This host's device: its CPU, or the kind that `gpus` share."""
    if kind == "cpu":
        model, flags = _cpu()
        features = hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16]
        return DeviceFacts(kind=kind, architecture=platform.machine(), model=model, features=features, driver=None)
    one = gpus[0]
    return DeviceFacts(
        kind=kind,
        architecture=platform.machine(),
        model=one.name,
        features=None,
        driver=one.driver,
        capability=one.capability,
        cores=None if one.cores is None else str(one.cores),
        mig=_switch(one.mig),
        ecc=_switch(one.ecc),
    )


def gpus_for(kind: DeviceName, wanted: Sequence[str]) -> tuple[list[Gpu], list[Gpu]]:
    """The GPUs to run on and those left out; none for a CPU. Raises BadInput when none answers for cuda."""
    if kind == "cpu":
        if wanted:
            raise BadInput("--gpu chooses among GPUs, and this run is on the CPU: add --device cuda")
        return [], []
    try:
        return gpu.chosen(wanted)
    except gpu.NoDriver as error:
        raise BadInput(
            f"--device cuda: {error}; install NVIDIA's driver (`nvidia-smi` then lists the GPUs) or use --device cpu"
        ) from error


def _switch(value: bool | None) -> str | None:  # noqa: FBT001
    return None if value is None else "on" if value else "off"


def _cpu() -> tuple[str, list[str]]:
    """Model name and flags of /proc/cpuinfo's first processor (x86 and Arm name them differently)."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    arm = " ".join(fields[name] for name in ("CPU implementer", "CPU part", "CPU variant") if name in fields)
    return fields.get("model name") or f"Arm {arm}", (fields.get("flags") or fields.get("Features") or "").split()
