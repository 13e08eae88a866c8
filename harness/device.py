"""The device as the host sees it: what captures must share to stand in one table."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.errors import BadInput
from harness.matrix import DeviceName


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """Model and driver. `features` is a hash of the CPU's flags: another set, other code paths."""

    kind: DeviceName
    architecture: str
    model: str
    features: str | None
    driver: str | None


def default() -> DeviceName:
    """`cuda` where an NVIDIA driver is loaded, else `cpu`."""
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def describe(kind: DeviceName) -> DeviceFacts:
    """This host's device. Raises BadInput when cuda is asked for and no driver answers."""
    if kind == "cpu":
        model, flags = _cpu()
        features = hashlib.sha256(" ".join(sorted(flags)).encode()).hexdigest()[:16]
        return DeviceFacts(kind=kind, architecture=platform.machine(), model=model, features=features, driver=None)
    lines = _nvidia()
    if not lines:
        raise BadInput("--device cuda: no NVIDIA driver answers (`nvidia-smi` fails); install it or use --device cpu")
    name, driver = (part.strip() for part in lines[0].split(","))
    return DeviceFacts(kind=kind, architecture=platform.machine(), model=name, features=None, driver=driver)


def _nvidia() -> list[str]:
    """`name, driver` of each GPU, by nvidia-smi; empty when there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def _cpu() -> tuple[str, list[str]]:
    """Model name and flags of /proc/cpuinfo's first processor (x86 and Arm name them differently)."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    arm = " ".join(fields[name] for name in ("CPU implementer", "CPU part", "CPU variant") if name in fields)
    return fields.get("model name") or f"Arm {arm}", (fields.get("flags") or fields.get("Features") or "").split()
