"""What every measure works with: the candidate's steps, the inputs, results as bytes, and a time to stop."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.cell import capture
from harness.cell.claims import Claims
from harness.cell.inputs import Inputs
from harness.cell.job import Job
from harness.cell.op import Op, Run, Steps, steps

Bytes = npt.NDArray[np.uint8]


class Impossible(Exception):
    """This measure can't be taken here; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One measure's workplace. `until` is the time on the monotonic clock when it has to stop."""

    job: Job
    op: Op
    run: Run
    inputs: Inputs
    claims: Claims
    until: float

    @functools.cached_property
    def steps(self) -> Steps:
        """The candidate in its parts."""
        return steps(self.run)

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return time.monotonic() > self.until

    @functools.cached_property
    def largest(self) -> Mapping[str, Any]:
        """The inputs of the largest case, placed."""
        return self.steps.place(self.inputs.at(max(self.job.cases)))

    def rows(self, indexes: Sequence[int]) -> Mapping[str, Any]:
        """Placed inputs whose rows are these of the largest case (modulo its number), in this order, as copies."""
        available = max(self.job.cases)
        chosen = [index % available for index in indexes]
        return {
            tensor.name: _taken(self.largest[tensor.name], chosen) if tensor.has_rows else self.largest[tensor.name]
            for tensor in self.op.inputs
        }

    def row_bytes(self, indexes: Sequence[int]) -> dict[str, Bytes]:
        """Every result that has rows for these rows: one line of bytes a row."""
        results = self.steps.whole(self.rows(indexes))
        return {
            tensor.name: bytes_of(tensor.name, results[tensor.name], len(indexes)).reshape(len(indexes), -1)
            for tensor in self.op.results()
            if tensor.shape[:1] == ("T",)
        }


def bytes_of(name: str, value: object, case: int) -> Bytes:
    """A result's bytes, flat; on the host whatever the device."""
    return np.frombuffer(capture.raw(name, value, case).data, np.uint8)


def synchronize() -> None:
    """Wait for the device, where there is one: its work is asynchronous."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _taken(placed: Any, indexes: list[int]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(placed, torch.Tensor):
        return placed[torch.tensor(indexes, device=placed.device)]
    return np.ascontiguousarray(np.asarray(placed)[indexes])
