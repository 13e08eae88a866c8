"""What a cell says of itself: status, tensors' digests, times and facts. The host treats all of it as claims."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.cell.files import replacing
from harness.cell.status import Status

SCHEMA = 1
NAME = "claims.json"


@dataclass(kw_only=True)
class Claims:
    """Filled in as the cell proceeds, so that a cell that ends early still says what it knows.

    `tensors` maps case (text) and result name to dtype, shape and SHA-256; `inputs` holds the digests found;
    `seconds` wall time by phase (a GPU's asynchronous work ends in a case's `write`). `activation` says which function
    switched the mode on, whether torch was there to be looked at (`seen`), and what it set in the process'
    `environment` and in torch's `flags`, before and after; `overrides` and `patches` what it replaced in torch;
    `precision` torch's flags as the activation left them (`found`) and as the cases ran (`in_force`). `measures` holds
    status, reason, seconds and result of each by its name.
    """

    cell: str
    status: Status = Status.FAILED
    reason: str | None = None
    tensors: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    inputs: dict[str, str | dict[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    activation: dict[str, Any] | None = None
    overrides: list[dict[str, Any]] = field(default_factory=list)
    patches: list[dict[str, Any]] = field(default_factory=list)
    precision: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the work and say so in one line, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 6)
            print(f"{name}: {self.seconds[name]:.3f} s", flush=True)  # progress for the host's log

    def write(self, folder: Path) -> None:
        """Write `folder/claims.json`. Raises OSError when the folder can't be written."""
        text = json.dumps({"schema": SCHEMA, **asdict(self), "status": self.status.value}, indent=1, allow_nan=False)
        with replacing(folder / NAME) as stream:
            stream.write(text.encode())
