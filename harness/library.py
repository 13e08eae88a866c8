"""The op's kernel library: compiled once an architecture, and the same binary is mounted into every stack.

The compiler is a stack like any other (matrix.yaml's `toolchain`): ziglang, from a lock. It brings its own headers and
linker and is told the oldest C library to run on, so that the same sources give the same bytes wherever it runs.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import engine
from harness.engine import Mount, Request
from harness.environment import Environment
from harness.errors import BitmatrixError, Unavailable
from harness.files import (
    locked,
    read_json,
    sha256_file,
    sha256_json,
    sha256_tree,
    sources,
    temporary_folder,
    write_json,
)
from harness.process import logged, reason_in

COMPILER = "ziglang"
FLAGS = (
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
)
TARGETS = {
    # The C library floor is that of manylinux2014; FMA is what the contract needs.
    "x86_64": ("-target", "x86_64-linux-gnu.2.17", "-mcpu=x86_64_v3"),
    "aarch64": ("-target", "aarch64-linux-gnu.2.17"),
}
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


def source_folder(op_folder: Path) -> Path | None:
    """Where the op's kernel sources lie, or None when it has none."""
    folder = op_folder / "src"
    return folder if any(folder.glob("*.cpp")) else None


def find(out: Path, op_folder: Path, compiler: str) -> Library | None:
    """The library of these sources, if it was compiled before."""
    folder = _folder(out, op_folder, compiler)
    if not (folder / "build.json").is_file():
        return None
    build = read_json(folder / "build.json")
    library = Library(path=folder / build.pop("file"), **{**build, "flags": tuple(build["flags"])})
    if not library.path.is_file() or sha256_file(library.path) != library.sha256:
        raise BitmatrixError(f"{library.path}: not the bytes that were compiled; remove {folder} and run again")
    return library


def compiler_of(environment: Environment) -> str:
    """`ziglang==0.17.1`: from the lock, or what this interpreter has. Raises Unavailable when it has none."""
    if environment.isolation != "host":
        return f"{COMPILER}=={environment.pinned[COMPILER]}"
    try:
        return f"{COMPILER}=={importlib.metadata.version(COMPILER)}"
    except importlib.metadata.PackageNotFoundError as error:
        raise Unavailable(
            f"this interpreter has no {COMPILER} to compile the kernel with: pip install {COMPILER}, "
            "or choose another --isolation"
        ) from error


def log_of(out: Path, op_folder: Path) -> Path:
    """Where the compiler's words of the last `build` are."""
    return out / "kernels" / f"{op_folder.name}.log"


def build(out: Path, op_folder: Path, environment: Environment) -> Library:
    """Compile the op's `src/*.cpp` in the toolchain's environment, unless it was done before.

    Raises BitmatrixError with the compiler's own words.
    """
    compiler = compiler_of(environment)
    folder = _folder(out, op_folder, compiler)
    with locked(folder.with_suffix(".lock")):
        found = find(out, op_folder, compiler)
        if found:
            return found
        log = log_of(out, op_folder)
        log.unlink(missing_ok=True)
        file = f"lib{op_folder.name}-{platform.machine()}.so"
        with temporary_folder(folder.parent, folder.name) as temporary:
            _compile(op_folder / "src", temporary, file, environment, log)
            facts = {
                "file": file,
                "sha256": sha256_file(temporary / file),
                "architecture": platform.machine(),
                "compiler": compiler,
                "flags": _flags(),
            }
            write_json(temporary / "build.json", facts)
            temporary.rename(folder)
        log.unlink(missing_ok=True)  # a log that stays is a failure's
    library = find(out, op_folder, compiler)
    assert library is not None
    return library


def _folder(out: Path, op_folder: Path, compiler: str) -> Path:
    source = op_folder / "src"
    identity = {"sources": sha256_tree(sources(source), source), "compiler": compiler, "flags": _flags()}
    return out / "kernels" / f"{op_folder.name}-{sha256_json(identity)[:16]}"


def _flags() -> list[str]:
    target = TARGETS.get(platform.machine())
    if target is None:
        raise Unavailable(f"the kernel is built for {' and '.join(TARGETS)}, and this machine is {platform.machine()}")
    return [*target, *FLAGS]


def _compile(source: Path, folder: Path, file: str, environment: Environment, log: Path) -> None:
    names = [path.name for path in sorted(source.glob("*.cpp"))]
    if environment.isolation != "docker":
        command = _command(environment.python, source, names, folder / file)
        cache = str(folder / ".cache")
        zig = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        logged(command, log=log, what="compiling the kernel", environment={**os.environ, **zig})
        return
    assert environment.image is not None
    request = Request(
        image=environment.image,
        purpose="kernels",
        command=_command(environment.python, Path("/mnt/src"), names, Path("/mnt/out") / file),
        mounts=(Mount(source, "/mnt/src"), Mount(folder, "/mnt/out", writable=True)),
        environment={"ZIG_GLOBAL_CACHE_DIR": "/tmp/zig", "ZIG_LOCAL_CACHE_DIR": "/tmp/zig", "HOME": "/tmp"},  # noqa: S108
        options={"network_mode": "none", **engine.as_caller()},
    )
    with engine.container(request) as made:
        ending = engine.run(made, log=log, seconds=_SECONDS)
    if ending.exit_code != 0:
        raise BitmatrixError(f"compiling the kernel failed: {reason_in(log)}; the whole log: {log}")


def _command(python: str, source: Path, names: list[str], target: Path) -> list[str]:
    files = [str(source / name) for name in names]
    prefix = f"-ffile-prefix-map={source}=src"
    return [python, "-m", "ziglang", "c++", *_flags(), prefix, *files, "-o", str(target)]
