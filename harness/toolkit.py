"""How the engine hands a GPU to a container: NVIDIA's container toolkit, as a runtime hook or through CDI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal

from docker import types

from harness import engine
from harness.errors import BadInput
from harness.gpu import Gpu

Way = Literal["hook", "cdi"]

_CDI_KIND = "nvidia.com/gpu"
REFUSALS = ("could not select device driver", "unresolvable CDI devices", "CDI device injection failed")
"""What engines say at a container's start when they can't hand it a GPU."""

MISSING = (
    "the Docker engine can't hand GPUs to containers: NVIDIA's container toolkit isn't there. On Ubuntu, with NVIDIA's "
    "package repository set up (docs/gpus.md):\n"
    "  sudo apt-get install nvidia-container-toolkit\n"
    "  sudo nvidia-ctk runtime configure --runtime=docker\n"
    "  sudo systemctl restart docker\n"
    "or run without containers: --isolation venv"
)


def way() -> Way | None:
    """How this engine can hand out GPUs; None when it can't. Raises EngineError when no engine answers."""
    with engine.explained("asking the engine what it has"):
        told: dict[str, Any] = engine.client().info()
    # The engine looks for the hook on its own path; a configured runtime says that the toolkit is installed.
    if "nvidia" in (told.get("Runtimes") or {}) or (_local() and shutil.which("nvidia-container-runtime-hook")):
        return "hook"
    discovered = [str(device.get("ID", "")) for device in told.get("DiscoveredDevices") or []]
    if any(name.startswith(_CDI_KIND) for name in discovered):
        return "cdi"
    # An engine that doesn't know CDI names no folder for it.
    places = told.get("CDISpecDirs")
    return "cdi" if places and _local() and _specified(places) else None


def needed() -> None:
    """Raise BadInput, with what to install, when this engine can't hand a GPU to a container."""
    if way() is None:
        raise BadInput(MISSING)


def request(gpu: Gpu, how: Way) -> types.DeviceRequest:
    """What is asked of the engine: this GPU or MIG instance, by UUID, for computing alone."""
    if how == "cdi":
        return types.DeviceRequest(driver="cdi", device_ids=[f"{_CDI_KIND}={gpu.uuid}"])
    return types.DeviceRequest(device_ids=[gpu.uuid], capabilities=[["gpu", "compute", "utility"]])


def _local() -> bool:
    return os.environ.get("DOCKER_HOST", "unix://").startswith("unix://")


def _specified(places: list[str]) -> bool:
    files = [path for place in places for path in Path(place).glob("*") if path.suffix in (".yaml", ".json")]
    return any(_CDI_KIND in path.read_text(encoding="utf-8", errors="replace") for path in files)
