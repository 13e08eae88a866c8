"""The collector: compares a run's captures bit for bit. A pure function of the run's folder; needs no engine.

Equal digests settle a pair without reading it. What two differing tensors gave is remembered by their digests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import capture, rundir
from harness.capture import Record
from harness.cell.op import Op
from harness.compare import Comparison, compare, identical
from harness.errors import BitmatrixError
from harness.files import locked, read_json, write_json
from harness.report import Report
from harness.rundir import Run, RunCell
from harness.tensors import TensorRef
from harness.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One cell of the run as the collector judged it: its record and tensors when they hold, else why not."""

    cell: RunCell
    status: capture.Status
    reason: str | None
    record: Record | None
    tensors: dict[int, dict[str, TensorRef]]


def gather(folder: Path, described: Run, op: Op) -> list[Collected]:
    """Each cell with its checked capture. A capture that doesn't hold makes its cell failed, and the others stay."""
    collected = []
    for cell in described.cells:
        record, refs, reason = None, {}, cell.reason
        status = cell.status
        if status == "done":
            try:
                record, refs = _checked(folder / cell.folder, described, cell, op)
            except (BitmatrixError, OSError) as error:
                status, reason = "failed", f"the capture was refused: {str(error).replace(f'{folder}/', '')}"
        collected.append(Collected(cell=cell, status=status, reason=reason, record=record, tensors=refs))
    return collected


def _checked(folder: Path, described: Run, cell: RunCell, op: Op) -> tuple[Record, dict[int, dict[str, TensorRef]]]:
    record = capture.read(folder)
    if (record.key, record.cell, record.status) != (cell.key, cell.name, "done"):
        raise BitmatrixError(f"{folder}/record.json is of {record.cell} ({record.status}), key {record.key}")
    for part, wanted in (("inputs", described.inputs), ("device", described.device), ("cases", described.cases)):
        if record.identity.get(part) != wanted:
            raise BitmatrixError(
                f"{folder}/record.json: its {part} are not this run's; it can't stand in one table with it"
            )
    refs = {case: capture.declared(folder, op, case) for case in described.cases}
    capture.verify(folder, record, refs)
    return record, refs


class Comparisons:
    """Comparisons of tensors by the digests of their bytes; remembered between runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, list[object]] = read_json(path) if path.is_file() else {}
        self._new: dict[str, list[object]] = {}

    def of(self, a: TensorRef, digest_a: str, b: TensorRef, digest_b: str) -> Comparison:
        """Compare two tensors of equal shape and dtype; the order of the two doesn't matter."""
        key = ":".join([a.dtype, "x".join(map(str, a.shape)), *sorted((digest_a, digest_b))])
        if key not in self._known:
            found = identical(a) if digest_a == digest_b else compare(a, b)
            self._known[key] = self._new[key] = [found.equal, found.differ, found.numel, found.max_abs]
        equal, differ, numel, max_abs = self._known[key]
        return Comparison(equal=equal, differ=differ, numel=numel, max_abs=max_abs)  # type: ignore[arg-type]

    def save(self) -> None:
        """Add what was found to the file."""
        if self._new:
            with locked(self._path.with_suffix(".lock")):
                known = read_json(self._path) if self._path.is_file() else {}
                write_json(self._path, {**known, **self._new})
