"""Where things lie: the checkout's own folders, out/ for results, and a cache for what can be fetched again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The folders of one invocation. `root` holds kernels/ and images/; `out` the results; `cache` downloads."""

    root: Path = REPOSITORY
    matrix: Path = REPOSITORY / "matrix.yaml"
    out: Path = REPOSITORY / "out"
    cache: Path
    own: Path | None = None
    """A folder with locks and stacks of its own in the place of the checkout's and of out/'s: those of a trial, which
    must touch neither. Captures, inputs and kernels are shared: their names hold all that they depend on."""

    @property
    def kernels(self) -> Path:
        """The op folders."""
        return self.root / "kernels"

    @property
    def locks(self) -> Path:
        """The stacks' locks."""
        return (self.own or self.root / "images") / "locks"

    @property
    def cells(self) -> Path:
        """Captures of done cells, by resume key."""
        return self.out / "cells"

    @property
    def attempts(self) -> Path:
        """What cells that aren't done left, by resume key: a record and a log."""
        return self.out / "attempts"

    @property
    def stacks(self) -> Path:
        """What is known of each stack's environment, and the logs of making it."""
        return (self.own or self.out) / "stacks"


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/bitmatrix`, or ~/.cache/bitmatrix."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitmatrix"
