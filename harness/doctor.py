"""The doctor: whether this host can run a device's matrix, a line a check, each with its remedy. It changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from harness import engine, gpu, pipsite
from harness.engine import EngineError
from harness.matrix import DeviceName
from harness.workspace import Workspace

Verdict = Literal["ok", "warn", "fail"]

_LEAST_FREE_GIB = {"cpu": 8, "cuda": 80}
"""What bases, wheelhouses, images and one run may take, roughly: a warning, not a limit."""

_EARLIEST = time.mktime((2026, 1, 1, 0, 0, 0, 0, 0, 0))


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line: what was looked at, what it is, and what to do about it."""

    verdict: Verdict
    subject: str
    finding: str
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.verdict:4}  {self.subject}: {self.finding}{f'. {self.remedy}' if self.remedy else ''}"


def checks(workspace: Workspace, device: DeviceName) -> Iterator[Check]:
    """Every check of the device, in the order in which a run needs things."""
    yield Check(verdict="ok", subject="Python", finding=f"{sys.version.split()[0]} ({sys.executable})")
    yield _clock()
    if device == "cuda":
        yield from _gpus()
    yield from _engine(device)
    yield from _tools()
    for name, folder in (("results", workspace.out), ("cache", workspace.cache)):
        yield _disk(name, folder, device)
    yield _index()


def _clock() -> Check:
    now = time.time()
    if now < _EARLIEST:
        return Check(
            verdict="fail",
            subject="clock",
            finding=f"it is {time.strftime('%Y-%m-%d')} here",
            remedy="Set it: certificates and the order of runs depend on it",
        )
    return Check(verdict="ok", subject="clock", finding=time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _gpus() -> Iterator[Check]:
    try:
        taken, left_out = gpu.chosen()
    except gpu.NoDriver as error:
        yield Check(
            verdict="fail", subject="driver", finding=str(error), remedy="Install NVIDIA's driver, 580 or newer"
        )
        return
    yield Check(verdict="ok", subject="driver", finding=f"{taken[0].driver}, runs CUDA up to {taken[0].cuda}")
    for one in taken:
        yield from _one_gpu(one)
    for one in left_out:
        yield Check(
            verdict="warn",
            subject=f"GPU {one.index}",
            finding=f"{one.name} is left out: unlike the others, or not in CUDA_VISIBLE_DEVICES",
            remedy="--gpu chooses",
        )
    yield _leases()
    yield from _fabric(len(taken))


def _one_gpu(one: gpu.Gpu) -> Iterator[Check]:
    known = {True: "on", False: "off", None: "unknown"}
    facts = f"{one.name}, {one.uuid}, capability {one.capability}, MIG {known[one.mig]}, ECC {known[one.ecc]}"
    yield Check(verdict="ok", subject=f"GPU {one.index}", finding=facts)
    busy = gpu.processes(one.uuid)
    if busy:
        yield Check(
            verdict="warn",
            subject=f"GPU {one.index}",
            finding=f"busy with process {', '.join(map(str, busy))}",
            remedy="Bits are unaffected, latency is not",
        )
    held = [reason for reason in gpu.state(one.uuid).get("held_down_by") or [] if reason != "idle"]
    if held:
        yield Check(
            verdict="warn",
            subject=f"GPU {one.index}",
            finding=f"its clocks are held down: {', '.join(held)}",
            remedy="Bits are unaffected, latency is not",
        )


def _leases() -> Check:
    folder = gpu.lock_folder()
    if folder == gpu.LOCKS:
        return Check(verdict="ok", subject="leases", finding=f"under {folder}, shared by all users")
    return Check(
        verdict="warn",
        subject="leases",
        finding=f"{gpu.LOCKS} can't be written, so they lie under {folder}",
        remedy="Users with another TMPDIR could share a GPU with this one",
    )


def _fabric(count: int) -> Iterator[Check]:
    """NVSwitch hosts need the fabric manager before any CUDA program starts."""
    if count < 2 or not any(Path("/dev").glob("nvidia-nvswitch*")):
        return
    running = subprocess.run(["pgrep", "-f", "nv-fabricmanager"], capture_output=True, check=False).returncode == 0
    if running:
        yield Check(verdict="ok", subject="fabric manager", finding="runs")
    else:
        yield Check(
            verdict="fail",
            subject="fabric manager",
            finding="this host has NVSwitches and no nv-fabricmanager runs",
            remedy="`systemctl start nvidia-fabricmanager`; CUDA doesn't initialise without it",
        )


def _engine(device: DeviceName) -> Iterator[Check]:
    try:
        version = str(engine.client().version().get("Version", "unknown"))
    except EngineError as error:
        yield Check(verdict="warn", subject="Docker engine", finding=str(error))
        return
    yield Check(verdict="ok", subject="Docker engine", finding=version)
    if device == "cuda":
        support = engine.gpu_support()
        if support:
            yield Check(verdict="ok", subject="container toolkit", finding=support)
        else:
            yield Check(
                verdict="fail",
                subject="container toolkit",
                finding="the engine can't give a container a GPU",
                remedy="Install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart "
                "docker; or choose --isolation venv",
            )


def _tools() -> Iterator[Check]:
    for program, purpose in (("git", "sources at a commit"), ("debootstrap", "bases from a distribution's packages")):
        found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        yield Check(
            verdict="ok" if found else "warn",
            subject=program,
            finding=found or f"not installed; it is for {purpose}",
            remedy=None if found else f"`apt-get install {program}`",
        )


def _disk(name: str, folder: Path, device: DeviceName) -> Check:
    place = folder
    while not place.exists():
        place = place.parent
    free, wanted = shutil.disk_usage(place).free >> 30, _LEAST_FREE_GIB[device]
    if not os.access(place, os.W_OK):
        return Check(verdict="fail", subject=name, finding=f"{folder} can't be written", remedy="Choose another place")
    return Check(
        verdict="ok" if free >= wanted else "warn",
        subject=name,
        finding=f"{free} GiB free for {folder}",
        remedy=None if free >= wanted else f"The whole {device} matrix may need {wanted} GiB",
    )


def _index() -> Check:
    """Whether pip, as this site sets it up, reaches an index: it names the releases when asked for one that isn't."""
    where = urlsplit(pipsite.find().settings.get("index-url", "https://pypi.org/simple")).hostname or "a local index"
    ask = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries=0", "--timeout=10", "--dest", os.devnull]
    answer = subprocess.run([*ask, "packaging==0"], capture_output=True, text=True, check=False).stderr
    if "from versions: " in answer and "from versions: none" not in answer:
        return Check(verdict="ok", subject="package index", finding=f"{where} answers")
    return Check(
        verdict="warn",
        subject="package index",
        finding=f"{where} doesn't answer",
        remedy="Stacks that aren't in the cache can't be fetched; see `pip config list` and the proxy variables",
    )
