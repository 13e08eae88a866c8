"""The op's kernel library: compiled once an architecture, and the same binary is mounted into every stack.

The compiler is a stack like any other (matrix.yaml's `toolchain`), made from a lock. For a CPU it is ziglang, which
brings its own headers and linker and is told the oldest C library to run on, so that the same sources give the same
bytes wherever it runs. For CUDA it is nvcc with the base's own C++ compiler.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import engine, files
from harness.engine import Mount, Request
from harness.environment import Environment
from harness.errors import BitmatrixError, Unavailable
from harness.files import (
    locked,
    read_json,
    sha256_file,
    sha256_json,
    sha256_tree,
    temporary_folder,
    write_json,
)
from harness.matrix import DeviceName
from harness.process import logged, reason_in
from harness.workspace import REPOSITORY

COMPILERS: dict[DeviceName, str] = {"cpu": "ziglang", "cuda": "nvidia-cuda-nvcc"}
"""The package that each device's compiler comes from."""
FLAGS: dict[DeviceName, tuple[str, ...]] = {
    "cpu": (
        "-std=c++17",
        "-O3",
        # Every product and sum rounds as it is written: what is fused says so.
        "-ffp-contract=off",
        "-fno-fast-math",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-rtti",
        # Without a C++ runtime: a kernel needs none, and building it takes 40 s instead of 3.
        "-nostdlib++",
        "-s",
        "-Wl,--build-id=none",
    ),
    "cuda": (
        "-std=c++17",
        "-O3",
        "-fmad=false",
        "-ftz=false",
        "-prec-div=true",
        "-prec-sqrt=true",
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_100,code=sm_100",
        # What the driver of a newer GPU compiles.
        "-gencode=arch=compute_100,code=compute_100",
        "-t0",
        "-shared",
        "-cudart=static",
        "-cudadevrt=none",
        "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-fno-exceptions,-fno-rtti",
        "-Xlinker=-s,--build-id=none,--as-needed,-z,defs",
    ),
}
TARGETS = {
    # The C library floor is that of manylinux2014; FMA is what the contract needs.
    "x86_64": ("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v3"),
    "aarch64": ("-target", "aarch64-linux-gnu.2.17"),
}
_NVCC = REPOSITORY / "images" / "nvcc.sh"
_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled kernel library and what made it."""

    path: Path
    sha256: str
    architecture: str
    compiler: str
    flags: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """The library in a record or report: by its file's name, for its folder is this host's own."""
        return {**asdict(self), "path": self.path.name, "flags": list(self.flags)}


def sources(op_folder: Path, device: DeviceName) -> list[Path]:
    """What is compiled for a device: `src/*.cpp` for every one, `src/cpu/*.cpp` or `src/cuda/*.cu` for one alone.

    Empty when the op has no kernel for it.
    """
    folder = op_folder / "src"
    own = sorted(folder.glob("cpu/*.cpp" if device == "cpu" else "cuda/*.cu"))
    shared = sorted(folder.glob("*.cpp"))
    return [*shared, *own] if own or device == "cpu" else []


def find(out: Path, op_folder: Path, device: DeviceName, compiler: str) -> Library | None:
    """The library of these sources, if it was compiled before."""
    folder = _folder(out, op_folder, device, compiler)
    if not (folder / "build.json").is_file():
        return None
    build = read_json(folder / "build.json")
    library = Library(path=folder / build.pop("file"), **{**build, "flags": tuple(build["flags"])})
    if not library.path.is_file() or sha256_file(library.path) != library.sha256:
        raise BitmatrixError(f"{library.path}: not the bytes that were compiled; remove {folder} and run again")
    return library


def compiler_of(environment: Environment, device: DeviceName) -> str:
    """`ziglang==0.17.1`: from the lock, or what this host has. Raises Unavailable when it has none."""
    name = COMPILERS[device]
    if environment.isolation != "host":
        return f"{name}=={environment.pinned[name]}"
    if device == "cuda":
        return _own_nvcc(environment.python)
    try:
        return f"{name}=={importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError as error:
        raise Unavailable(
            f"this interpreter has no {name} to compile the kernel with: pip install {name}, "
            "or choose another --isolation"
        ) from error


def _own_nvcc(python: str) -> str:
    told = subprocess.run(["sh", str(_NVCC), python, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\bV([0-9.]+)", told.stdout)
    if told.returncode or version is None:
        words = told.stderr.strip().removeprefix("ERROR: ") or "nvcc does not give its version"
        raise Unavailable(f"the kernel can't be compiled on this host: {words}")
    return f"nvcc=={version[1]}"


def log_of(out: Path, op_folder: Path) -> Path:
    """Where the compiler's words of the last `build` are."""
    return out / "kernels" / f"{op_folder.name}.log"


def build(out: Path, op_folder: Path, device: DeviceName, environment: Environment) -> Library:
    """Compile the op's sources for `device` in the toolchain's environment, unless it was done before.

    Raises BitmatrixError with the compiler's own words.
    """
    compiler = compiler_of(environment, device)
    folder = _folder(out, op_folder, device, compiler)
    with locked(folder.with_suffix(".lock")):
        found = find(out, op_folder, device, compiler)
        if found:
            return found
        log = log_of(out, op_folder)
        log.unlink(missing_ok=True)
        file = f"lib{op_folder.name}-{device}-{platform.machine()}.so"
        with temporary_folder(folder.parent, folder.name) as temporary:
            _compile(op_folder, device, temporary, file, environment, log)
            facts = {
                "file": file,
                "sha256": sha256_file(temporary / file),
                "architecture": platform.machine(),
                "compiler": compiler,
                "flags": _flags(device),
            }
            write_json(temporary / "build.json", facts)
            temporary.rename(folder)
        log.unlink(missing_ok=True)  # a log that stays is a failure's
    library = find(out, op_folder, device, compiler)
    assert library is not None
    return library


def _folder(out: Path, op_folder: Path, device: DeviceName, compiler: str) -> Path:
    source = op_folder / "src"
    other = source / ("cuda" if device == "cpu" else "cpu")
    read = [path for path in files.sources(source) if other not in path.parents]
    identity = {"sources": sha256_tree(read, source), "compiler": compiler, "flags": _flags(device)}
    return out / "kernels" / f"{op_folder.name}-{device}-{sha256_json(identity)[:16]}"


def _flags(device: DeviceName) -> list[str]:
    if device == "cuda":
        return list(FLAGS[device])
    target = TARGETS.get(platform.machine())
    if target is None:
        raise Unavailable(f"the kernel is built for {' and '.join(TARGETS)}, and this machine is {platform.machine()}")
    return [*target, *FLAGS[device]]


def _compile(op_folder: Path, device: DeviceName, folder: Path, file: str, environment: Environment, log: Path) -> None:
    source = op_folder / "src"
    names = [str(path.relative_to(source)) for path in sources(op_folder, device)]
    if environment.isolation != "docker":
        command = _command(device, environment.python, _NVCC, source, names, folder / file)
        cache = str(folder / ".cache")
        zig = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        logged(command, log=log, what="compiling the kernel", environment={**os.environ, **zig})
        shutil.rmtree(cache, ignore_errors=True)
        return
    assert environment.image is not None
    request = Request(
        image=environment.image,
        purpose="kernels",
        command=_command(
            device, environment.python, Path("/mnt/nvcc.sh"), Path("/mnt/src"), names, Path("/mnt/out") / file
        ),
        mounts=(Mount(source, "/mnt/src"), Mount(_NVCC, "/mnt/nvcc.sh"), Mount(folder, "/mnt/out", writable=True)),
        environment={"ZIG_GLOBAL_CACHE_DIR": "/tmp/zig", "ZIG_LOCAL_CACHE_DIR": "/tmp/zig", "HOME": "/tmp"},  # noqa: S108
        options={"network_mode": "none", **engine.as_caller()},
    )
    with engine.container(request) as made:
        ending = engine.run(made, log=log, seconds=_SECONDS)
    if ending.exit_code != 0:
        raise BitmatrixError(f"compiling the kernel failed: {reason_in(log)}; the whole log: {log}")


def _command(device: DeviceName, python: str, nvcc: Path, source: Path, names: list[str], target: Path) -> list[str]:
    files = [str(source / name) for name in names]
    if device == "cuda":
        return ["sh", str(nvcc), python, *_flags(device), *files, "-o", str(target)]
    prefix = f"-ffile-prefix-map={source}=src"
    return [python, "-m", "ziglang", "c++", *_flags(device), prefix, *files, "-o", str(target)]
