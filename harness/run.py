"""Running the cells of one stack, each in a process of its own; what is done already isn't run again."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import capture, company, gpu, isolation, lease, measure, results
from harness.capture import Record, TensorFacts, Verdict
from harness.engine import Ending, EngineError
from harness.errors import BitmatrixError, Unavailable
from harness.files import locked, temporary_folder
from harness.gpu import Gpu, State
from harness.isolation import Task
from harness.lease import Lease
from harness.measure import Measured, SecondProcess, Settings
from harness.plan import Cell
from harness.preparation import Blocked, Preparation, Ready
from harness.progress import Progress

MEASURING = "measuring"
"""What `harness.cell.measures` leaves in the output folder while it works."""


def cells(
    preparation: Preparation, stack: str, *, fresh: bool, progress: Progress
) -> list[tuple[Cell, str, str | None]]:
    """Run the stack's cells; returns each with its status and reason. One that fails never keeps the others."""
    results = []
    for cell in preparation.plan.cells:
        if cell.stack == stack:
            with progress.cell(cell.name, stack) as note:
                try:
                    status, reason, reused = _cell(preparation, cell, fresh=fresh, say=progress.say)
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


def _cell(
    preparation: Preparation, cell: Cell, *, fresh: bool, say: Callable[[str], None]
) -> tuple[str, str | None, bool]:
    ready = preparation.resolve(cell)
    if isinstance(ready, Blocked):
        return ready.status, ready.reason, False
    workspace = preparation.workspace
    with locked(workspace.cells / f".{ready.key}.lock"):
        # Whoever began these held the lock and lives no more.
        for left in workspace.cells.glob(f".{ready.key[:12]}-*.tmp"):
            shutil.rmtree(left, ignore_errors=True)
        record = None if fresh else settled(preparation, ready.key)
        wanted = preparation.plan.measures
        if record and record.status == "done" and _holds(preparation, record):
            if not measure.lacks(record.measured, wanted):
                return record.status, record.reason, True
            wanted = measure.merged(record.measured, wanted)
        with (
            _leased(preparation, say) as held,
            temporary_folder(workspace.cells, ready.key[:12]) as folder,
        ):
            task = _task(preparation, cell, ready, held, folder)
            record = _attempt(preparation, ready, replace(task, measures=wanted))
        return record.status, record.reason, False


@contextlib.contextmanager
def _leased(preparation: Preparation, say: Callable[[str], None]) -> Iterator[Lease | None]:
    """A GPU for one cell alone, with a warning when others compute there; None on a cpu."""
    gpus = preparation.device.gpus
    if not gpus:
        yield None
        return
    folder, warning = lease.place()
    if warning:
        say(warning)
    with lease.take(gpus, folder, say) as held:
        busy = gpu.state(held.gpu).processes
        if busy:
            pids = ", ".join(str(process["pid"]) for process in busy)
            say(f"{held.gpu.label} is busy with process {pids}: times suffer, bits don't")
        yield held


def _holds(preparation: Preparation, record: Record) -> bool:
    """Whether a kept capture is still what its record says; one that was damaged is made again."""
    folder = preparation.workspace.cells / record.key
    try:
        capture.verified(folder, record, preparation.op, preparation.plan.cases)
    except BitmatrixError:
        return False
    return not _unlike(preparation, record.identity["candidate"], record.tensors)


def _unlike(preparation: Preparation, candidate: str, tensors: Mapping[str, Mapping[str, TensorFacts]]) -> list[str]:
    """Where a candidate's results aren't those that the op pins for the inputs that it pins."""
    wanted = preparation.results.get(candidate, {}) if preparation.inputs_pinned else {}
    return results.apart(wanted, results.digests(tensors))


def as_pinned(preparation: Preparation, candidate: str, verdict: Verdict) -> Verdict:
    """The verdict, unless the candidate's results are pinned and these are others. They are kept, to be looked at."""
    unlike = _unlike(preparation, candidate, verdict.tensors) if verdict.status == "done" else []
    if not unlike:
        return verdict
    where = ", ".join(unlike[:3]) + (f" and {len(unlike) - 3} more" if len(unlike) > 3 else "")
    reason = (
        f"it returned other bits than {preparation.op_folder.name}/{results.FILE} pins ({where}): "
        "the host, the compiler or the kernel is broken"
    )
    return replace(verdict, status="failed", reason=reason)


def _task(preparation: Preparation, cell: Cell, ready: Ready, held: Lease | None, folder: Path) -> Task:
    return Task(
        cell=cell,
        plan=preparation.plan,
        environment=ready.environment,
        library=ready.library,
        lease=held,
        runtime=preparation.runtime.folder,
        inputs=preparation.inputs,
        input_digests=preparation.input_digests,
        op=preparation.op.name,
        folder=folder,
    )


def _attempt(preparation: Preparation, ready: Ready, task: Task) -> Record:
    """One cell, judged; its capture or what it left of a failure is kept."""
    started, clock = datetime.now(UTC), time.monotonic()
    held, folder, workspace = task.lease, task.folder, preparation.workspace
    before = gpu.state(held.gpu) if held else None
    with company.kept(workspace.out / "running") as met:
        ending, verdict, lost = _measuring(preparation, task)
        seconds = round(time.monotonic() - clock, 3)
        in_company = met()
    after = gpu.state(held.gpu) if held else None
    capture.collect_output(task.output, folder, verdict.tensors)
    second = _second(preparation, task, verdict) if verdict.status == "done" else None
    record = Record(
        key=ready.key,
        cell=task.cell.name,
        status=verdict.status,
        reason=verdict.reason,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        exit_code=ending.exit_code,
        identity=dict(ready.identity),
        environment=asdict(ready.environment),
        library=ready.library.facts() if ready.library else None,
        tensors=verdict.tensors,
        files={case: capture.stamp(capture.case_file(folder, case)) for case in verdict.tensors},
        claims=verdict.claims,
        measured=Measured(asked=_plain(task.measures), second=second, lost=lost, company=in_company),
        gpu=_gpu(preparation, held.gpu, before, after) if held and before and after else None,
    )
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    capture.write(folder, record)
    if record.status == "done":
        capture.keep(folder, workspace.cells / ready.key)
        shutil.rmtree(workspace.attempts / ready.key, ignore_errors=True)
    else:
        capture.keep(folder, workspace.attempts / ready.key)
    return record


def _plain(settings: Mapping[str, Mapping[str, Any]]) -> Settings:
    return {name: dict(value) for name, value in settings.items()}


def _measuring(preparation: Preparation, task: Task) -> tuple[Ending, Verdict, str | None]:
    """Launch the cell; where its process died over a measure, again without any, and why they are lost."""
    ending, verdict = _launch(preparation, task)
    if verdict.status not in ("crashed", "timed_out") or not os.path.lexists(task.output / MEASURING):
        return ending, verdict, None
    lost = f"the process that measured was lost: {verdict.reason}"
    shutil.rmtree(task.output)
    shutil.rmtree(task.folder / "scratch", ignore_errors=True)
    # What it printed stays beside the other's log.
    task.log.rename(task.log.with_name("measuring-log.txt"))
    return *_launch(preparation, replace(task, measures={})), lost


def _second(preparation: Preparation, task: Task, first: Verdict) -> SecondProcess | None:
    """The whole cell in a second process, without measures, against the first: only what differs is kept of it."""
    if not task.measures.get("repeatability", {}).get("second_process"):
        return None
    folder = task.folder / "second"
    folder.mkdir()
    try:
        _, verdict = _launch(preparation, replace(task, folder=folder, measures={}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    differ = {
        case: [name for name, facts in tensors.items() if verdict.tensors.get(case, {}).get(name) != facts]
        for case, tensors in (first.tensors if verdict.status == "done" else {}).items()
    }
    return SecondProcess(
        status=verdict.status,
        reason=verdict.reason,
        differ={case: names for case, names in differ.items() if names},
    )


def _gpu(preparation: Preparation, leased: Gpu, before: State, after: State) -> dict[str, Any]:
    assert preparation.device.driver is not None
    states = {"before": asdict(before), "after": asdict(after)}
    return {**asdict(leased), "driver": asdict(preparation.device.driver), **states}


def _launch(preparation: Preparation, task: Task) -> tuple[Ending, Verdict]:
    try:
        ending = isolation.launch(task)
    except EngineError as error:
        return Ending(exit_code=None), Verdict(status="crashed", reason=str(error), tensors={}, claims={})
    except Unavailable as error:
        return Ending(exit_code=None), Verdict(status="unavailable", reason=str(error), tensors={}, claims={})
    verdict = capture.judge(
        task.output,
        preparation.op,
        preparation.plan.cases,
        ending.exit_code,
        out_of_memory=ending.out_of_memory,
    )
    return ending, as_pinned(preparation, task.cell.candidate, on_lease(verdict, task.lease))


def on_lease(verdict: Verdict, held: Lease | None) -> Verdict:
    """The verdict, unless the process says that it ran on another GPU than the one it was given."""
    seen = verdict.claims.get("facts", {}).get("gpu")
    uuid = seen.get("uuid") if isinstance(seen, dict) else None
    if held is None or not isinstance(uuid, str) or gpu.same_device(held.gpu, uuid):
        return verdict
    reason = f"it ran on the GPU {uuid[:64]}, not on the one it was given, {held.gpu.label}"
    return Verdict(status="failed", reason=reason, tensors={}, claims=verdict.claims)
