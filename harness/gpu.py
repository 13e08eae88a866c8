"""The host's GPUs, as NVIDIA's management library (NVML) describes them: facts, state, and which are considered.

NVML counts GPUs as nvidia-smi does, by PCI bus; an index here is that one. Where MIG is on, a GPU's instances stand in
its place, since no process can use the whole.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from harness.errors import BadInput, Unavailable

Fabric = str
"""`absent` (no NVSwitch), `not started`, `in progress` or `ready`."""

_MINIMUM_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major -> the least driver branch that runs its programs (CUDA Compatibility, minor version compatibility)."""

_CORES = {(6, 0): 64, (6, 1): 128, (6, 2): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
"""FP32 cores a multiprocessor, by compute capability (CUDA C++ Programming Guide); 128 in every newer one."""

_REASONS = {
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "limited by set application clocks",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost group",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "too hot (software slowdown)",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "too hot (hardware slowdown)",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display clocks",
}
"""What holds the clocks down, in words. Idling is no reason: it says that nothing runs."""

_FABRIC = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED: "absent",
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "not started",
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "in progress",
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: "ready",
}


class NoDriver(Unavailable):
    """No NVIDIA driver answers on this host."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The driver's version, and the newest CUDA version that it runs itself ("13.0")."""

    version: str
    cuda: str


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of one. None where NVML doesn't say."""

    index: int
    """nvidia-smi's; an instance has its GPU's."""
    uuid: str
    name: str
    capability: str
    """"9.0"."""
    multiprocessors: int | None
    memory_bytes: int | None
    mig: bool | None
    ecc: bool | None
    parent: str
    """The UUID of the physical GPU: its own unless this is an instance."""

    @property
    def label(self) -> str:
        """As messages name it."""
        return f"GPU {self.index} ({self.name}, {self.uuid})"

    @property
    def kind(self) -> tuple[object, ...]:
        """What two GPUs must share for their captures to stand in one table, beside the driver."""
        return (self.name, self.capability, self.multiprocessors, self.mig, self.ecc)


@dataclass(frozen=True, kw_only=True)
class State:
    """A GPU at one moment. Clocks in MHz, power in W; None where NVML doesn't say.

    `held_down_ns` counts, since the driver was loaded, the nanoseconds for which power or heat held the clocks down:
    two readings tell of all that lies between.
    """

    sm_mhz: int | None
    sm_max_mhz: int | None
    memory_mhz: int | None
    memory_max_mhz: int | None
    power_w: float | None
    throttle: list[str] | None
    held_down_ns: dict[str, int | None]
    processes: list[dict[str, int | None]] | None
    """pid and bytes of GPU memory of each process that computes there."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The like GPUs that cells may run on, and the others, each with why it was left out."""

    gpus: tuple[Gpu, ...]
    left_out: tuple[str, ...]


# Facts ---------------------------------------------------------------------------------------------------------------


def driver() -> Driver:
    """The driver. Raises NoDriver."""
    with _nvml():
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Driver(
            version=_text(pynvml.nvmlSystemGetDriverVersion()), cuda=f"{number // 1000}.{number % 1000 // 10}"
        )


def every() -> list[Gpu]:
    """Every GPU that a process could use, in nvidia-smi's order. Raises NoDriver."""
    with _nvml():
        return [gpu for index in range(pynvml.nvmlDeviceGetCount()) for gpu in _usable(index)]


def state(gpu: Gpu) -> State:
    """The GPU's clocks and what holds them down, now. Of an instance, its physical GPU's. Raises NoDriver."""
    with _nvml():
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.parent)

        def clock(read: Callable[..., int], kind: int) -> int | None:
            found: int | None = _ask(lambda: read(handle, kind))
            return found

        milliwatts = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        return State(
            sm_mhz=clock(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            sm_max_mhz=clock(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
            memory_mhz=clock(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
            memory_max_mhz=clock(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
            power_w=None if milliwatts is None else milliwatts / 1000,
            throttle=_throttle(handle),
            held_down_ns={
                name: _ask(lambda policy=policy: int(pynvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime))  # type: ignore[misc]
                for name, policy in (
                    ("power", pynvml.NVML_PERF_POLICY_POWER),
                    ("thermal", pynvml.NVML_PERF_POLICY_THERMAL),
                )
            },
            processes=_processes(handle),
        )


def fabric(gpu: Gpu) -> Fabric | None:
    """How far the GPU is registered with its NVSwitch fabric; None where NVML doesn't say. Raises NoDriver."""
    with _nvml():
        handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.parent)
        info = pynvml.c_nvmlGpuFabricInfo_t()
        if _ask(lambda: pynvml.nvmlDeviceGetGpuFabricInfo(handle, pynvml.byref(info))) is None:
            return None
        return _FABRIC.get(info.state)


def _usable(index: int) -> Iterator[Gpu]:
    """The GPU of an index, or its MIG instances where MIG is on."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    mode = _ask(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    ecc = _ask(lambda: pynvml.nvmlDeviceGetEccMode(handle))
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    parent = _text(pynvml.nvmlDeviceGetUUID(handle))

    def described(one: Any, multiprocessors: int | None) -> Gpu:
        memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(one))
        return Gpu(
            index=index,
            uuid=_text(pynvml.nvmlDeviceGetUUID(one)),
            name=_text(pynvml.nvmlDeviceGetName(one)),
            capability=f"{major}.{minor}",
            multiprocessors=multiprocessors,
            memory_bytes=None if memory is None else int(memory.total),
            mig=None if mode is None else bool(mode[0]),
            ecc=None if ecc is None else bool(ecc[0]),
            parent=parent,
        )

    if mode is None or not mode[0]:
        cores = _ask(lambda: pynvml.nvmlDeviceGetNumGpuCores(handle))
        yield described(handle, None if cores is None else cores // _CORES.get((major, minor), 128))
        return
    for number in range(_ask(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        instance = _ask(lambda number=number: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))  # type: ignore[misc]
        if instance is not None:
            attributes = _ask(lambda one=instance: pynvml.nvmlDeviceGetAttributes_v2(one))  # type: ignore[misc]
            yield described(instance, None if attributes is None else int(attributes.multiprocessorCount))


def _throttle(handle: Any) -> list[str] | None:
    bits = _ask(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if bits is None:  # a driver older than 535 knows it by this name
        bits = _ask(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    return None if bits is None else [words for bit, words in _REASONS.items() if bits & bit]


def _processes(handle: Any) -> list[dict[str, int | None]] | None:
    found = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    return None if found is None else [{"pid": one.pid, "memory_bytes": one.usedGpuMemory} for one in found]


@contextlib.contextmanager
def _nvml() -> Iterator[None]:
    """NVML, initialised for the time of a question: a driver that is replaced meanwhile is noticed at the next."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriver(f"no NVIDIA driver answers ({_because(error)})") from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise NoDriver(f"the NVIDIA driver doesn't answer ({_because(error)})") from error
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _because(error: pynvml.NVMLError) -> str:
    if isinstance(error, pynvml.NVMLError_LibraryNotFound):
        return "libnvidia-ml.so.1 isn't installed"
    return f"NVML: {error}"


def _ask(question: Callable[[], Any]) -> Any:
    """The answer, or None where this GPU, driver or user can't have one."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# Choice --------------------------------------------------------------------------------------------------------------


def choose(asked: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> Choice:
    """The like GPUs that cells may run on.

    CUDA_VISIBLE_DEVICES restricts what is considered, then `asked` (indices or UUIDs). Of unlike GPUs the largest
    group of like ones is taken, of groups of one size the one with the lowest index; those asked for must be alike.

    Raises:
        NoDriver: no NVIDIA driver answers.
        BadInput: none is left, or one that is asked for isn't there, or those asked for are unlike.
    """
    present = every()
    visible, hidden = _visible(present, environment.get("CUDA_VISIBLE_DEVICES"))
    if not visible:
        raise BadInput(_nothing(present, environment))
    if asked:
        wanted = [gpu for word in asked for gpu in _named(word, visible)]
        considered = [gpu for gpu in visible if gpu in wanted]
        left = [f"{gpu.label}: not asked for" for gpu in visible if gpu not in considered]
    else:
        considered, left = visible, []
    groups: dict[tuple[object, ...], list[Gpu]] = {}
    for gpu in considered:
        groups.setdefault(gpu.kind, []).append(gpu)
    if asked and len(groups) > 1:
        names = "; ".join(_kind(group[0]) for group in groups.values())
        raise BadInput(f"--gpu: unlike GPUs can't share one table ({names}); run once for each kind")
    chosen = max(groups.values(), key=len)
    unlike = [
        f"{gpu.label}: unlike {chosen[0].label} ({_kind(gpu)}, not {_kind(chosen[0])})"
        for gpu in considered
        if gpu not in chosen
    ]
    return Choice(gpus=tuple(chosen), left_out=(*hidden, *left, *unlike))


def _nothing(present: list[Gpu], environment: Mapping[str, str]) -> str:
    if present:
        value = environment.get("CUDA_VISIBLE_DEVICES")
        return (
            f"CUDA_VISIBLE_DEVICES={value!r} leaves none of this host's GPUs; unset it, or name some of: "
            + ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in present)
        )
    return (
        "the NVIDIA driver answers but has no GPU that a process could use: `nvidia-smi -L` lists them (with MIG on, "
        "a GPU needs an instance: `nvidia-smi mig -cgi ... -C`)"
    )


def _kind(gpu: Gpu) -> str:
    switches = {True: "on", False: "off", None: "unknown"}
    return (
        f"{gpu.name}, capability {gpu.capability}, {gpu.multiprocessors} multiprocessors, "
        f"MIG {switches[gpu.mig]}, ECC {switches[gpu.ecc]}"
    )


def _visible(present: list[Gpu], value: str | None) -> tuple[list[Gpu], list[str]]:
    """What CUDA_VISIBLE_DEVICES leaves, as CUDA reads it: nothing counts after the first name that isn't there."""
    if value is None:
        return present, []
    seen: list[Gpu] = []
    for word in value.split(","):
        found = _matching(word.strip(), present)
        if not found:
            break
        seen += [gpu for gpu in found if gpu not in seen]
    hidden = [f"{gpu.label}: not in CUDA_VISIBLE_DEVICES" for gpu in present if gpu not in seen]
    return [gpu for gpu in present if gpu in seen], hidden


def _named(word: str, gpus: list[Gpu]) -> list[Gpu]:
    found = _matching(word, gpus)
    if not found:
        known = ", ".join(f"{gpu.index} or {gpu.uuid}" for gpu in gpus)
        raise BadInput(f"--gpu {word}: no such GPU here, or CUDA_VISIBLE_DEVICES hides it (known: {known})")
    return found


def _matching(word: str, gpus: list[Gpu]) -> list[Gpu]:
    """GPUs of an index, of a UUID or of the one UUID that begins so."""
    if word.isascii() and word.isdigit():
        return [gpu for gpu in gpus if gpu.index == int(word)]
    exact = [gpu for gpu in gpus if word in (gpu.uuid, gpu.parent)]
    begun = [gpu for gpu in gpus if gpu.uuid.startswith(word)] if word.startswith(("GPU-", "MIG-")) else []
    return exact or (begun if len(begun) == 1 else [])


# What a stack needs --------------------------------------------------------------------------------------------------


def cuda_of(pins: Mapping[str, str]) -> str | None:
    """The CUDA version ("13.0") that a lock's pins (package -> version) bring; None when they bring none."""
    local = re.search(r"\+cu(\d+)(\d)$", pins.get("torch", ""))
    if local:
        return f"{local[1]}.{local[2]}"
    for package in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12", "cuda-toolkit"):
        parts = pins.get(package, "").split(".")
        if len(parts) > 1 and all(part.isdigit() for part in parts[:2]) and parts[0] != "0":
            return f"{parts[0]}.{parts[1]}"
    return None


def driver_lacks(cuda: str, found: str) -> str | None:
    """Why a driver of version `found` can't run programs of a CUDA version, or None when it can."""
    least = _MINIMUM_DRIVER.get(int(cuda.split(".")[0]))
    branch = found.split(".")[0]
    if least is None or not branch.isdigit() or int(branch) >= least:
        return None
    return f"CUDA {cuda} needs NVIDIA driver {least} or newer, this host has {found}: update the driver"


def below(capability: str, least: str) -> bool:
    """Whether a compute capability ("8.6") is below another."""
    return _numbers(capability) < _numbers(least)


def same_device(gpu: Gpu, seen: str) -> bool:
    """Whether a UUID that a process saw is this GPU's or, of an instance, its GPU's. torch drops the prefix."""
    return _bare(seen) in (_bare(gpu.uuid), _bare(gpu.parent))


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))
