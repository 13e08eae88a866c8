"""GPUs, through NVIDIA's management library: which there are, what state they are in, and one lease each.

A lease is a file lock by the GPU's UUID, so that no two cells of this host share a GPU, whoever started them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from harness.errors import BadInput, BitmatrixError

LOCKS = Path("/run/lock")
"""Where every user of the host finds the same locks."""

_POLL_SECONDS = 0.2
_MOST_MIG = 16

_MINIMUM_DRIVERS = {11: "450", 12: "525", 13: "580"}
"""CUDA's major version -> the first driver branch that runs it (CUDA release notes, minor version compatibility)."""

_REASONS = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "application clocks set",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal slowdown (software)",
    "HwThermalSlowdown": "thermal slowdown (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks",
}

Answer = TypeVar("Answer")


class NoDriver(BitmatrixError):
    """NVIDIA's management library isn't there, or no GPU answers it."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of one. What a driver doesn't tell is None."""

    index: int
    uuid: str
    name: str
    capability: str
    """Compute capability, e.g. "9.0"."""
    cores: int | None
    driver: str
    cuda: str
    """The newest CUDA that the driver runs, e.g. "13.0"."""
    mig: bool | None
    ecc: bool | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What GPUs must share for their captures to stand in one table (the driver is the host's)."""
        return (self.name, self.capability, self.cores, self.mig, self.ecc)


def found() -> list[Gpu]:
    """The host's GPUs, those with MIG on as their instances. Raises NoDriver when none answers."""
    with _nvml():
        driver = pynvml.nvmlSystemGetDriverVersion()
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = [gpu for index, handle in enumerate(handles) for gpu in _described(index, handle, driver, cuda)]
    if not gpus:
        raise NoDriver(f"driver {driver} answers, but it finds no GPU")
    return gpus


def chosen(wanted: Sequence[str] = ()) -> tuple[list[Gpu], list[Gpu]]:
    """The GPUs to run on, all of one kind, and those left out.

    `wanted` (UUIDs or indices) chooses; without it CUDA_VISIBLE_DEVICES does, and without that all count. Of unlike
    ones the largest group is taken. Raises NoDriver, or BadInput for a GPU that isn't there or unlike ones.
    """
    gpus = found()
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    asked = [_by_name(gpus, name.strip()) for name in wanted or visible]
    groups: dict[tuple[Any, ...], list[Gpu]] = {}
    for gpu in dict.fromkeys(asked) if asked else gpus:
        groups.setdefault(gpu.kind, []).append(gpu)
    if wanted and len(groups) > 1:
        unlike = ", ".join(f"{group[0].name} ({group[0].uuid})" for group in groups.values())
        raise BadInput(f"--gpu: captures of unlike GPUs can't stand in one table: {unlike}; choose GPUs of one kind")
    taken = max(groups.values(), key=len)
    return taken, [gpu for gpu in gpus if gpu not in taken]


def state(uuid: str) -> dict[str, Any]:
    """Clocks in MHz, their maximum, what holds them down, temperature in °C and power in W; null where unknown."""
    try:
        with _nvml():
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            clocks = {
                name: _asked(functools.partial(pynvml.nvmlDeviceGetClockInfo, handle, clock))
                for name, clock in (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM))
            }
            most = {
                name: _asked(functools.partial(pynvml.nvmlDeviceGetMaxClockInfo, handle, clock))
                for name, clock in (("sm", pynvml.NVML_CLOCK_SM), ("memory", pynvml.NVML_CLOCK_MEM))
            }
            bits = _asked(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            power = _asked(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
            return {
                "clocks_mhz": clocks,
                "largest_clocks_mhz": most,
                "held_down_by": None if bits is None else reasons(bits),
                "celsius": _asked(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
                "watts": None if power is None else power / 1000,
            }
    except (NoDriver, pynvml.NVMLError) as error:
        return {"unknown": str(error)}


def reasons(bits: int) -> list[str]:
    """The clocks event reasons in words; a bit that has none by its number."""
    known = {getattr(pynvml, f"nvmlClocksEventReason{name}"): words for name, words in _REASONS.items()}
    named = [words for bit, words in known.items() if bits & bit]
    rest = bits & ~functools.reduce(int.__or__, known)
    return [*named, *([f"0x{rest:x}"] if rest else [])]


def processes(uuid: str) -> list[int]:
    """Process ids that compute on the GPU; empty where the driver doesn't tell."""
    try:
        with _nvml():
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            return [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except (NoDriver, pynvml.NVMLError):
        return []


def too_old(gpu: Gpu, cuda: str) -> str | None:
    """Why the GPU's driver can't run programs of a CUDA version, or None. Within one major version any driver can."""
    major = int(cuda.partition(".")[0])
    if major <= int(gpu.cuda.partition(".")[0]):
        return None
    least = _MINIMUM_DRIVERS.get(major)
    remedy = f"install driver {least} or newer" if least else "install a newer driver"
    return f"is built for CUDA {cuda}, and driver {gpu.driver} runs CUDA up to {gpu.cuda}: {remedy}"


@contextlib.contextmanager
def lease(gpus: Sequence[Gpu], waiting: Callable[[str], None]) -> Iterator[Gpu]:
    """Hold one of the GPUs, the first that is free; `waiting` is told once when none is.

    The lock ends with this process, however that ends. Raises BitmatrixError when no lock can be made.
    """
    told = False
    with contextlib.ExitStack() as held:
        while True:
            for gpu in gpus:
                if _taken(gpu, held):
                    yield gpu
                    return
            if not told:
                waiting(f"waiting for a GPU: all {len(gpus)} of kind {gpus[0].name} are leased by other cells")
                told = True
            time.sleep(_POLL_SECONDS)


def lock_folder() -> Path:
    """Where leases lie: one place for all users, or the user's own where that can't be written."""
    if os.access(LOCKS, os.W_OK):
        return LOCKS
    return Path(tempfile.gettempdir())


def _taken(gpu: Gpu, held: contextlib.ExitStack) -> bool:
    path = lock_folder() / f"bitmatrix-{gpu.uuid.replace('/', '_')}.lock"
    try:
        # Every user must be able to open it; O_CREAT without O_EXCL, and the mode past the umask.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BitmatrixError(
            f"{path}: the GPU can't be leased ({error.strerror}); remove the file or its owner's"
        ) from error
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    held.callback(os.close, descriptor)
    return True


def _by_name(gpus: list[Gpu], name: str) -> Gpu:
    for gpu in gpus:
        if name in (gpu.uuid, str(gpu.index)) or (len(name) >= 8 and gpu.uuid.startswith(name)):
            return gpu
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
    raise BadInput(f"no GPU {name} here (known: {known}); see --gpu and CUDA_VISIBLE_DEVICES")


def _described(index: int, handle: Any, driver: str, cuda: str) -> Iterator[Gpu]:
    mig = _asked(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    instances = list(_instances(handle)) if mig else []
    for one in instances or [handle]:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        yield Gpu(
            index=index,
            uuid=pynvml.nvmlDeviceGetUUID(one),
            name=pynvml.nvmlDeviceGetName(one),
            capability=f"{major}.{minor}",
            cores=_asked(functools.partial(pynvml.nvmlDeviceGetNumGpuCores, handle)),
            driver=driver,
            cuda=cuda,
            mig=mig,
            ecc=_asked(lambda: pynvml.nvmlDeviceGetEccMode(handle)[0] == 1),
        )


def _instances(handle: Any) -> Iterator[Any]:
    for number in range(_MOST_MIG):
        instance = _asked(functools.partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        if instance is not None:
            yield instance


def _asked(question: Callable[[], Answer]) -> Answer | None:
    """The answer, or None where this GPU or driver doesn't know the question."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


@contextlib.contextmanager
def _nvml() -> Iterator[None]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriver(f"no NVIDIA driver answers ({error})") from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise NoDriver(f"the NVIDIA driver doesn't answer ({error})") from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
