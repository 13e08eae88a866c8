"""The device as the host sees it: what captures must share to stand in one table."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import gpu
from harness.errors import BadInput
from harness.gpu import Choice, Driver, Gpu
from harness.matrix import DeviceName


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """Model and driver, each as text; a GPU's UUID is no part of it.

    `features` is a hash of a CPU's flags: another set, other code paths. `multiprocessors`, `mig` and `ecc` are a
    GPU's: "132", "on" or "off"; None where the driver doesn't say.
    """

    kind: DeviceName
    architecture: str
    model: str
    features: str | None
    driver: str | None
    capability: str | None = None
    multiprocessors: str | None = None
    mig: str | None = None
    ecc: str | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """A run's device. On a GPU host also the driver, the like GPUs to run on, and those left out, each with why."""

    facts: DeviceFacts
    driver: Driver | None = None
    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[str, ...] = ()


def default() -> DeviceName:
    """`cuda` where an NVIDIA driver is loaded, else `cpu`."""
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def find(kind: DeviceName, asked: Sequence[str] = ()) -> Device:
    """This host's device; `asked` names GPUs by index or UUID.

    Raises BadInput when cuda is wanted and no driver answers or no GPU is left, or a GPU is asked for on a cpu.
    """
    if kind == "cpu":
        if asked:
            raise BadInput(f"--gpu {asked[0]}: the device is cpu; say --device cuda too")
        return Device(facts=_cpu_facts())
    try:
        driver, choice = gpu.driver(), gpu.choose(asked)
    except gpu.NoDriver as error:
        raise BadInput(
            f"--device cuda: {error}; install the driver (`nvidia-smi` must work) or use --device cpu"
        ) from error
    return Device(facts=_gpu_facts(driver, choice), driver=driver, gpus=choice.gpus, left_out=choice.left_out)


def _gpu_facts(driver: Driver, choice: Choice) -> DeviceFacts:
    one = choice.gpus[0]
    switches = {True: "on", False: "off", None: None}
    return DeviceFacts(
        kind="cuda",
        architecture=platform.machine(),
        model=one.name,
        features=None,
        driver=driver.version,
        capability=one.capability,
        multiprocessors=None if one.multiprocessors is None else str(one.multiprocessors),
        mig=switches[one.mig],
        ecc=switches[one.ecc],
    )


def _cpu_facts() -> DeviceFacts:
    model, flags = _cpu()
    features = hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16]
    return DeviceFacts(kind="cpu", architecture=platform.machine(), model=model, features=features, driver=None)


def _cpu() -> tuple[str, list[str]]:
    """Model name and flags of /proc/cpuinfo's first processor (x86 and Arm name them differently)."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    arm = " ".join(fields[name] for name in ("CPU implementer", "CPU part", "CPU variant") if name in fields)
    return fields.get("model name") or f"Arm {arm}", (fields.get("flags") or fields.get("Features") or "").split()
