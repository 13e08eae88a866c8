"""Facts about the process: what was really imported, with which libraries, on what machine, in what environment."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import re
import resource
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.cell import hardware, numerics
from harness.cell.attempt import attempt

_NATIVE = re.compile(r"lib\w*(torch|cublas|cuda|cudnn|nvrtc|mkl|openblas|blis|lapack|gomp|omp5|triton)[^/]*\.so[^/]*$")
_OPENBLAS = {"config": ctypes.c_char_p, "corename": ctypes.c_char_p, "num_threads": ctypes.c_int}


def collect(device: str, declared: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Every fact, each on its own: one that can't be read says why and takes no other with it.

    `environment` is the process' own as it was at the start, before a mode could change it.
    """
    readers = {
        "python": _python,
        "platform": _platform,
        "distributions": lambda: {name: versions[0] for name, versions in _distributions().items()},
        "duplicate_distributions": lambda: {name: found for name, found in _distributions().items() if len(found) > 1},
        "modules": _modules,
        "native_libraries": _native_libraries,
        "torch": _torch,
        "numpy": _numpy,
        "openblas": _openblas,
        "cpu": hardware.cpu,
        "gpu": hardware.gpu if device == "cuda" else lambda: None,
        "environment": lambda: _environment(declared, environment),
        "peak_rss_bytes": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    return {name: attempt(read) for name, read in readers.items()}


def _python() -> dict[str, str]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "stdlib": sysconfig.get_path("stdlib"),
    }


def _platform() -> dict[str, str]:
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


@functools.cache
def _distributions() -> dict[str, list[str]]:
    """The versions of each installed distribution, the one that Python finds first in front."""
    versions: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        # A broken installation's folder has no name; it can't be imported under one either.
        if "Name" in distribution.metadata:
            canonical = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
            versions.setdefault(canonical, []).append(distribution.version)
    return dict(sorted(versions.items()))


def _modules() -> dict[str, dict[str, Any]]:
    """File, version and package of every imported public top-level module, the standard library's and harness' apart.

    `installed` is its package's version; `owned`, whether the file is one that its package installed: a folder that
    stands earlier on sys.path may hold another of that name. Both are None where that isn't known.
    """
    owners = importlib.metadata.packages_distributions()
    return {
        name: {
            "file": _file(module),
            "version": _text(getattr(module, "__version__", None)),
            **_owner(_file(module), owners.get(name, [])),
        }
        for name, module in sorted(sys.modules.items())
        if "." not in name
        and name not in sys.stdlib_module_names
        and name != "harness"
        and not name.startswith(("_", "bitmatrix_"))
        and _file(module)
    }


def _owner(file: str | None, packages: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"distribution": None, "installed": None, "owned": None}
    for package in packages:
        distribution = importlib.metadata.distribution(package)
        name = re.sub(r"[-_.]+", "-", package).lower()
        found = {"distribution": name, "installed": distribution.version, "owned": _owns(distribution, file)}
        if found["owned"]:
            return found
    return found


def _owns(distribution: importlib.metadata.Distribution, file: str | None) -> bool | None:
    root = Path(str(distribution.locate_file("")))
    # A namespace package has no file of its own, and an editable installation doesn't list its files.
    if file is None or distribution.files is None or Path(file).is_dir() or len(distribution.files) < 1:
        return None
    listed = {str(path) for path in distribution.files}
    if not any(path.endswith((".py", ".so")) for path in listed):
        return None
    return Path(file).is_relative_to(root) and str(Path(file).relative_to(root)) in listed


def _file(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    # A namespace package has folders only.
    return file or next(iter(getattr(module, "__path__", ())), None)


def _native_libraries() -> list[str]:
    """The shared libraries of numeric interest that the process has mapped, whoever loaded them."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if _NATIVE.search(path))


def _torch() -> dict[str, Any] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    readers = {
        "version": lambda: torch.__version__,
        "git_version": lambda: torch.version.git_version,
        "cuda": lambda: torch.version.cuda,
        "cudnn": lambda: torch.backends.cudnn.version(),
        "threads": torch.get_num_threads,
        "interop_threads": torch.get_num_interop_threads,
        "parallel_info": torch.__config__.parallel_info,
        "config": torch.__config__.show,
        "cpu_capability": torch.backends.cpu.get_cpu_capability,
        "flags": numerics.flags,
    }
    return {name: _plain(attempt(read)) for name, read in readers.items()}


def _numpy() -> dict[str, Any] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    config = attempt(lambda: numpy.show_config(mode="dicts"))
    dependencies = config.get("Build Dependencies", {}) if isinstance(config, dict) else {}
    return {
        "version": numpy.__version__,
        "blas": _plain(dependencies.get("blas")),
        "simd": _plain(config.get("SIMD Extensions")) if isinstance(config, dict) else None,
    }


def _openblas() -> list[dict[str, Any]]:
    """Configuration, core type and threads of each OpenBLAS in the process; its results depend on them."""
    paths = [path for path in _native_libraries() if "openblas" in Path(path).name]
    return [{"file": path, **_openblas_facts(ctypes.CDLL(path))} for path in paths]


def _openblas_facts(library: ctypes.CDLL) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in _OPENBLAS.items():
        # Builds for 64-bit integers, and SciPy's, decorate every symbol.
        symbols = (f"{prefix}openblas_get_{name}{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_"))
        function = next((getattr(library, symbol) for symbol in symbols if hasattr(library, symbol)), None)
        if function is not None:
            function.restype = kind
            value = function()
            found[name] = value.decode().strip() if isinstance(value, bytes) else value
    return found


def _environment(declared: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """The declared variables and the others as they were at the start, and what the process itself changed since."""
    now = dict(os.environ)
    return {
        "declared": {name: environment.get(name) for name in sorted(declared)},
        "other": {name: environment[name] for name in sorted(environment.keys() - declared.keys())},
        "changed": {
            name: [environment.get(name), now.get(name)]
            for name in sorted(environment.keys() | now.keys())
            if environment.get(name) != now.get(name)
        },
    }


def _plain(value: Any) -> Any:
    """JSON's own types as they are, containers too, anything else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
