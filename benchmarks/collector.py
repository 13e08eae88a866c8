"""The collector against a plain read: differing tensors at half its speed or more, in under 400 MiB.

The figures are of warm files: memory must hold three tensors, the pair in the page cache and the one that is read.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PROMISED_RATIO = 0.5
PROMISED_MIB = 400
_BLOCK = 1 << 22

_COMPARE = """
import json, resource, sys, time
from pathlib import Path
from harness.compare import compare
from harness.tensors import read_header
a, b = (read_header(Path(name))["tensor"] for name in sys.argv[1:])
clock = time.perf_counter()
found = compare(a, b)
seconds = time.perf_counter() - clock
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "peak_mib": peak, "differ": found.differ}))
"""

_READ = """
import json, sys, time
import numpy as np
clock = time.perf_counter()
for name in sys.argv[1:]:
    np.fromfile(name, np.float32)
print(json.dumps({"seconds": time.perf_counter() - clock}))
"""


def measure(folder: Path, *, gib: float, repeats: int) -> bool:
    """Compare two differing tensors of `gib` GiB and read the same warm files, in turn; whether the promise holds."""
    count = int(gib * (1 << 30) / 4)
    size = 2 * count * 4
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < size:
        print(
            f"collector: {folder} has no room for a pair of {gib:g} GiB tensors: choose a smaller --gib or a --folder"
        )
        return False
    compared, read, peak = [], [], 0.0
    with tempfile.TemporaryDirectory(prefix="collector-", dir=folder) as own:
        files = _pair(Path(own), count)
        _process(_READ, files)  # warms the files
        for turn in range(1, repeats + 1):
            read.append(_process(_READ, files)["seconds"])
            result = _process(_COMPARE, files)
            compared.append(result["seconds"])
            peak = max(peak, result["peak_mib"])
            print(
                f"collector: {turn} of {repeats}: np.fromfile {read[-1]:.2f} s, compare {compared[-1]:.2f} s",
                flush=True,
            )
    ours, plain = (size / 1e9 / statistics.median(seconds) for seconds in (compared, read))
    print(
        f"collector: {ours:.2f} GB/s, np.fromfile {plain:.2f} GB/s (medians of {repeats}): ratio {ours / plain:.2f} "
        f"(promised {PROMISED_RATIO}), peak {peak:.0f} MiB (promised {PROMISED_MIB})"
    )
    return ours / plain >= PROMISED_RATIO and peak <= PROMISED_MIB


def _pair(folder: Path, count: int) -> list[Path]:
    files = [folder / "a.safetensors", folder / "b.safetensors"]
    for file, change in zip(files, (np.float32(1), np.float32(1 + 1e-6)), strict=True):
        print(f"collector: writing {file.name}, {count * 4 / (1 << 30):g} GiB", flush=True)
        _write(file, count, change)
    return files


def _write(file: Path, count: int, change: np.float32) -> None:
    header = json.dumps({"tensor": {"dtype": "F32", "shape": [count], "data_offsets": [0, count * 4]}}).encode()
    block = np.random.default_rng(0).standard_normal(_BLOCK, np.float32) * change
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, count, _BLOCK):
            block[: min(_BLOCK, count - start)].tofile(stream)


def _process(code: str, files: list[Path]) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", code, *map(str, files)], stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result
