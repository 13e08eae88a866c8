"""The op's kernel library for tests: compiled by this interpreter's ziglang, once for given sources."""

from __future__ import annotations

import sys
from pathlib import Path

from harness import library
from harness.environment import Environment
from harness.workspace import REPOSITORY, default_cache

OP_FOLDER = REPOSITORY / "kernels" / "timestep_mlp"


def compile_library() -> Path:
    """The library of the sources as they are now, kept between test runs.

    Raises Unavailable when this interpreter has no ziglang, BitmatrixError when the sources don't compile.
    """
    here = Environment(stack="toolchain", isolation="host", python=sys.executable, identity="this interpreter")
    return library.build(default_cache() / "tests", OP_FOLDER, "cpu", here).path
