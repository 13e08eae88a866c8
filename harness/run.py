"""Running the cells of one stack, each in a process of its own; what is done already isn't run again."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from harness import capture, gpu, isolation
from harness.capture import Record, Verdict
from harness.engine import Ending, EngineError
from harness.errors import BitmatrixError
from harness.files import locked, temporary_folder
from harness.gpu import Gpu
from harness.isolation import Task
from harness.plan import Cell
from harness.preparation import Blocked, Preparation, Ready
from harness.progress import Progress


def cells(
    preparation: Preparation, stack: str, *, fresh: bool, progress: Progress
) -> list[tuple[Cell, str, str | None]]:
    """Run the stack's cells; returns each with its status and reason. One that fails never keeps the others."""
    results = []
    for cell in preparation.plan.cells:
        if cell.stack == stack:
            with progress.cell(cell.name, stack) as note:
                try:
                    status, reason, reused = _cell(preparation, cell, progress, fresh=fresh)
                except OSError as error:  # a disk that is full or gone: there may be no place for a record either
                    status, reason, reused = "failed", f"its files can't be written: {error}", False
                note(status, reason, reused=reused)
            results.append((cell, status, reason))
    return results


def settled(preparation: Preparation, key: str) -> Record | None:
    """The record of the last attempt at a key: a failed one stands over an older capture.

    A record that can't be read counts as none: the cell is made again.
    """
    for place in (preparation.workspace.attempts / key, preparation.workspace.cells / key):
        if (place / "record.json").is_file():
            with contextlib.suppress(BitmatrixError):
                return capture.read(place)
    return None


def _cell(preparation: Preparation, cell: Cell, progress: Progress, *, fresh: bool) -> tuple[str, str | None, bool]:
    ready = preparation.resolve(cell)
    if isinstance(ready, Blocked):
        return ready.status, ready.reason, False
    workspace = preparation.workspace
    with locked(workspace.cells / f".{ready.key}.lock"):
        # Whoever began these held the lock and lives no more.
        for left in workspace.cells.glob(f".{ready.key[:12]}-*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        record = None if fresh else settled(preparation, ready.key)
        if record and record.status == "done" and _holds(preparation, record):
            return record.status, record.reason, True
        with temporary_folder(workspace.cells, ready.key[:12]) as folder, _leased(preparation, progress) as leased:
            record = _attempt(preparation, cell, ready, leased, folder)
        return record.status, record.reason, False


def _holds(preparation: Preparation, record: Record) -> bool:
    """Whether a kept capture is still what its record says; one that was damaged is made again."""
    folder = preparation.workspace.cells / record.key
    try:
        capture.verified(folder, record, preparation.op, preparation.plan.cases)
    except BitmatrixError:
        return False
    return True


@contextlib.contextmanager
def _leased(preparation: Preparation, progress: Progress) -> Iterator[Gpu | None]:
    """A GPU of this cell's own for as long as it runs; None on a CPU."""
    if not preparation.gpus:
        yield None
        return
    with gpu.lease(preparation.gpus, progress.say) as leased:
        others = gpu.processes(leased.uuid)
        if others:
            progress.say(
                f"GPU {leased.index} ({leased.name}) is busy with process {', '.join(map(str, others))}: "
                "latency would suffer, bits are unaffected"
            )
        yield leased


def _attempt(preparation: Preparation, cell: Cell, ready: Ready, leased: Gpu | None, folder: Path) -> Record:
    """One process, judged; its capture or what it left of a failure is kept."""
    started, clock = datetime.now(UTC), time.monotonic()
    task = Task(
        cell=cell,
        plan=preparation.plan,
        environment=ready.environment,
        library=ready.library,
        runtime=preparation.runtime.folder,
        inputs=preparation.inputs,
        input_digests=preparation.input_digests,
        op=preparation.op.name,
        gpu=leased,
        folder=folder,
    )
    before = gpu.state(leased.uuid) if leased else None
    ending, verdict = _launch(preparation, task)
    after = gpu.state(leased.uuid) if leased else None
    capture.collect_output(task.output, folder, verdict.tensors)
    record = Record(
        key=ready.key,
        cell=cell.name,
        status=verdict.status,
        reason=verdict.reason,
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 3),
        exit_code=ending.exit_code,
        identity=dict(ready.identity),
        environment=asdict(ready.environment),
        library=ready.library.facts() if ready.library else None,
        tensors=verdict.tensors,
        files={case: capture.stamp(capture.case_file(folder, case)) for case in verdict.tensors},
        claims=verdict.claims,
        gpu={**asdict(leased), "before": before, "after": after} if leased else None,
    )
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    capture.write(folder, record)
    workspace = preparation.workspace
    if record.status == "done":
        capture.keep(folder, workspace.cells / ready.key)
        shutil.rmtree(workspace.attempts / ready.key, ignore_errors=True)
    else:
        capture.keep(folder, workspace.attempts / ready.key)
    return record


def _launch(preparation: Preparation, task: Task) -> tuple[Ending, Verdict]:
    try:
        ending = isolation.launch(task)
    except EngineError as error:
        return Ending(exit_code=None), Verdict(status="crashed", reason=str(error), tensors={}, claims={})
    verdict = capture.judge(
        task.output,
        preparation.op,
        preparation.plan.cases,
        ending.exit_code,
        out_of_memory=ending.out_of_memory,
    )
    return ending, _on_leased(verdict, task.gpu)


def _on_leased(verdict: Verdict, leased: Gpu | None) -> Verdict:
    """The verdict, failed when the process says that it ran on another GPU than the one leased to it."""
    facts = verdict.claims.get("facts")
    seen = facts.get("gpu") if isinstance(facts, dict) else None
    uuid = seen.get("uuid") if isinstance(seen, dict) else None
    # An instance of a GPU is known to torch by the whole GPU's UUID.
    if verdict.status != "done" or leased is None or leased.mig or not isinstance(uuid, str):
        return verdict
    if uuid.removeprefix("GPU-") == leased.uuid.removeprefix("GPU-"):
        return verdict
    reason = f"it ran on GPU {uuid}, and {leased.uuid} was leased to it"
    return Verdict(status="failed", reason=reason, tensors={}, claims=verdict.claims)
