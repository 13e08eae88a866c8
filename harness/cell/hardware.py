"""The processor and the GPU that a cell ran on."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

_CPU_FIELDS = {
    "vendor_id": "vendor",
    "model name": "model",
    "cpu family": "family",
    "model": "model_number",
    "stepping": "stepping",
    "microcode": "microcode",
    # aarch64 gives numbers of Arm's instead of a name.
    "CPU implementer": "implementer",
    "CPU architecture": "architecture",
    "CPU variant": "variant",
    "CPU part": "part",
    "CPU revision": "revision",
}
_DRIVER = Path("/proc/driver/nvidia/version")


def cpu() -> dict[str, Any]:
    """The first processor of /proc/cpuinfo, how many there are, and how many this process may use."""
    return {
        **cpu_model(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        "count": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)),
    }


def cpu_model(cpuinfo: str) -> dict[str, Any]:
    """The first processor's identity and sorted flags, from the text of /proc/cpuinfo (x86 or aarch64)."""
    fields = {}
    for line in cpuinfo.strip().partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    found: dict[str, Any] = {key: fields[name] for name, key in _CPU_FIELDS.items() if name in fields}
    return {**found, "flags": sorted((fields.get("flags") or fields.get("Features") or "").split())}


def gpu() -> dict[str, Any] | None:
    """The CUDA device in use, as torch describes it; None without torch or without a device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "name": device.name,
        "capability": [device.major, device.minor],
        "uuid": str(device.uuid) if hasattr(device, "uuid") else None,
        "multiprocessors": device.multi_processor_count,
        "memory_bytes": device.total_memory,
        "driver": driver(_DRIVER.read_text(encoding="utf-8")) if _DRIVER.exists() else None,
        "visible_devices": torch.cuda.device_count(),
    }


def driver(text: str) -> str | None:
    """The version in /proc/driver/nvidia/version, e.g. 580.95.05, for the open and the closed kernel module."""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else None
