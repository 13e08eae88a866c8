"""The doctor: what this host has and lacks for a device, a line each, with what to do about it. It changes nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from harness import base, device, engine, gpu, lease, library, pipsite, toolkit
from harness.errors import BadInput
from harness.gpu import Gpu
from harness.matrix import DeviceName, Matrix
from harness.plan import IsolationName
from harness.workspace import Workspace

Level = Literal["ok", "warn", "fail"]

_IMAGES_GIB = {"cpu": 10, "cuda": 80}
"""Room for a device's images, wheels and results: an estimate, generous."""

_WHEELS_GIB = {"cpu": 5, "cuda": 20}
"""Room for the wheels alone: those of the CUDA stacks without sglang took 12.3 GiB when they were fetched."""

_INDEX_SECONDS = 60
_OLDEST = datetime(2026, 1, 1, tzinfo=UTC)
"""Before this a clock is wrong, and the certificates of package indexes aren't valid yet."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding. `fail` is for what the device can't do without."""

    level: Level
    what: str
    text: str
    remedy: str | None = None

    def line(self) -> str:
        """As it is printed."""
        return f"{self.level:4}  {self.what}: {self.text}" + (f"\n      {self.remedy}" if self.remedy else "")


def examine(
    workspace: Workspace, matrix: Matrix, kind: DeviceName, isolation: IsolationName, asked: tuple[str, ...]
) -> Iterator[Check]:
    """Every check, as it is made: the slow ones ask the package index and the engine."""
    yield from _tools()
    if kind == "cuda":
        yield from _gpus(asked)
        yield _leases()
    yield from _isolation(matrix, kind, isolation)
    yield from _disks(workspace, kind, isolation)
    if isolation != "host":
        yield _index()
    yield from _compiler(workspace, matrix, kind, isolation)
    yield _clock()


def _tools() -> Iterator[Check]:
    new = sys.version_info >= (3, 11)
    yield Check(
        level="ok" if new else "fail",
        what="Python",
        text=platform.python_version(),
        remedy=None if new else "3.11 or newer is needed",
    )
    has_nox = importlib.util.find_spec("nox") is not None
    yield Check(
        level="ok" if has_nox else "warn",
        what="nox",
        text="installed" if has_nox else "not installed; `python -m harness matrix` does without",
        remedy=None if has_nox else f"{sys.executable} -m pip install -c constraints.txt -e '.[nox]'",
    )
    git = shutil.which("git")
    yield Check(
        level="ok" if git else "warn",
        what="git",
        text=git or "not installed: reports can't name this repository's commit",
        remedy=None if git else "apt-get install git",
    )


def _gpus(asked: tuple[str, ...]) -> Iterator[Check]:
    try:
        found = device.find("cuda", asked)
    except BadInput as error:
        yield Check(level="fail", what="driver", text=str(error))
        return
    assert found.driver is not None
    lacks = gpu.driver_lacks("13.0", found.driver.version)
    yield Check(
        level="warn" if lacks else "ok",
        what="driver",
        text=f"{found.driver.version}, CUDA {found.driver.cuda}",
        remedy=f"stacks of CUDA 13 are unavailable: {lacks}" if lacks else None,
    )
    for one in found.gpus:
        yield from _gpu(one)
    for reason in found.left_out:
        yield Check(level="warn", what="left out", text=reason)


def _gpu(one: Gpu) -> Iterator[Check]:
    now = gpu.state(one)
    switches = {True: "on", False: "off", None: "unknown"}
    text = (
        f"capability {one.capability}, {one.multiprocessors} multiprocessors, MIG {switches[one.mig]}, "
        f"ECC {switches[one.ecc]}, clocks {now.sm_mhz}/{now.sm_max_mhz} MHz (SM), "
        f"{now.memory_mhz}/{now.memory_max_mhz} MHz (memory)"
    )
    yield Check(level="ok", what=one.label, text=text)
    if now.throttle:
        yield Check(
            level="warn",
            what=one.label,
            text=f"clocks are held down: {', '.join(now.throttle)}",
            remedy="times suffer, bits don't: see power limit, cooling and set clocks (`nvidia-smi -q -d PERFORMANCE`)",
        )
    if now.processes:
        pids = ", ".join(str(process["pid"]) for process in now.processes)
        yield Check(
            level="warn",
            what=one.label,
            text=f"busy with process {pids}",
            remedy="times suffer, bits don't: end it, or choose another with --gpu",
        )
    state = gpu.fabric(one)
    if state in ("not started", "in progress"):
        yield Check(
            level="fail",
            what=one.label,
            text=f"its NVSwitch fabric is {state}: CUDA can't start",
            remedy="systemctl start nvidia-fabricmanager, of the driver's exact version; then look again",
        )
    elif state == "ready":
        yield Check(level="ok", what=one.label, text="its NVSwitch fabric is ready")


def _leases() -> Check:
    folder, warning = lease.place()
    return Check(level="warn" if warning else "ok", what="GPU leases", text=warning or f"in {folder}")


def _isolation(matrix: Matrix, kind: DeviceName, isolation: IsolationName) -> Iterator[Check]:
    if isolation == "docker":
        yield from _engine(matrix, kind)
        return
    yield Check(level="ok", what="isolation", text=isolation)
    if isolation == "venv":
        bases = {stack.base for stack in matrix.device(kind).stacks.values() if stack.base}
        for version in sorted({matrix.bases[name].python for name in bases}):
            own = version == f"{sys.version_info[0]}.{sys.version_info[1]}"
            has = own or shutil.which(f"python{version}")
            yield Check(
                level="ok" if has else "fail",
                what=f"Python {version} of the locks",
                text="on this host" if has else f"no python{version} on the PATH",
                remedy=None if has else "install it, or use --isolation docker",
            )


def _engine(matrix: Matrix, kind: DeviceName) -> Iterator[Check]:
    try:
        told = engine.client().version()
        how = toolkit.way() if kind == "cuda" else None
    except (engine.EngineError, *engine.FAULTS) as error:
        yield Check(level="fail", what="engine", text=str(error))
        return
    yield Check(level="ok", what="engine", text=f"{told.get('Version')}, API {told.get('ApiVersion')}")
    if kind == "cuda":
        yield Check(
            level="ok" if how else "fail",
            what="container toolkit",
            text=f"GPUs are handed out by {how}" if how else toolkit.MISSING.replace("\n", "\n      "),
        )
    yield from _bases(matrix, kind)


def _bases(matrix: Matrix, kind: DeviceName) -> Iterator[Check]:
    for name in sorted({stack.base for stack in matrix.device(kind).stacks.values() if stack.base}):
        declared = matrix.bases[name]
        if declared.debootstrap is None:
            continue
        made = any(f"{base.REPOSITORY}:{name}-" in tag for image in engine.client().images.list() for tag in image.tags)
        able = os.geteuid() == 0 and shutil.which("debootstrap") is not None
        yield Check(
            level="ok" if made or able else "fail",
            what=f"base {name}",
            text="the engine has one" if made else "can be made here" if able else "isn't made, and can't be made so",
            remedy=None
            if made or able
            else f"apt-get install debootstrap, then once: sudo {sys.executable} -m harness base {name}",
        )


def _disks(workspace: Workspace, kind: DeviceName, isolation: IsolationName) -> Iterator[Check]:
    places = {"results": workspace.out, "cache": workspace.cache}
    # In venv isolation the environments lie in the cache too; in host isolation nothing is fetched.
    cache = {"docker": _WHEELS_GIB[kind], "venv": _IMAGES_GIB[kind], "host": 5}[isolation]
    rooms = {"results": 5, "cache": cache, "images": _IMAGES_GIB[kind]}
    if isolation == "docker" and engine.answers():
        places["images"] = Path(str(engine.client().info().get("DockerRootDir", "")))
    for what, place in places.items():
        there = next(path for path in (place, *place.absolute().parents) if path.exists())
        free = shutil.disk_usage(there).free / (1 << 30)
        wanted = rooms[what]
        yield Check(
            level="ok" if free >= wanted else "warn",
            what=f"disk for {what}",
            text=f"{free:.0f} GiB free at {there}; about {wanted} GiB may be needed",
            remedy=None if free >= wanted else "make room: `nox -s clean -- --images`, or --out and --cache elsewhere",
        )


def _index() -> Check:
    """Ask for one small package's versions, as the fetch step would: with the site's own settings."""
    site = pipsite.find()
    where = site.settings.get("index-url", "pip's default index")
    resolving = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--retries", "0", "safetensors"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *resolving, "--disable-pip-version-check"],
            capture_output=True,
            text=True,
            timeout=_INDEX_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(level="warn", what="package index", text=f"no answer within {_INDEX_SECONDS} s", remedy=_OFFLINE)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        return Check(level="warn", what="package index", text=last[:200], remedy=_OFFLINE)
    plain = where.rpartition("@")[2] if "@" in where else where  # never a password
    return Check(level="ok", what="package index", text=f"answers ({plain})")


_OFFLINE = "stacks that are made already still run; new ones need pip's index-url, proxy and cert settings to be right"


def _compiler(workspace: Workspace, matrix: Matrix, kind: DeviceName, isolation: IsolationName) -> Iterator[Check]:
    if kind != "cuda" or not library.sources(workspace.kernels / matrix.op, kind) or isolation != "host":
        return
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    yield Check(
        level="ok" if nvcc else "warn",
        what="nvcc",
        text=nvcc or "not installed: the kernel can't be compiled on this host",
        remedy=None if nvcc else "install the CUDA toolkit of the driver's CUDA version",
    )


def _clock() -> Check:
    now = datetime.now(UTC)
    sane = now >= _OLDEST
    return Check(
        level="ok" if sane else "warn",
        what="clock",
        text=now.isoformat(timespec="seconds"),
        remedy=None if sane else "set it: certificates of package indexes seem not to be valid yet",
    )
