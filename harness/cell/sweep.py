"""One cell's work: check what was given, switch the mode on, run every case in order, capture it; then measure."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from harness.cell import measures, numerics
from harness.cell.activation import activate
from harness.cell.capture import capture
from harness.cell.claims import Claims
from harness.cell.inputs import Inputs
from harness.cell.job import Job, Library
from harness.cell.op import Context, Op, Run, load_module, load_op
from harness.cell.packages import packages_needed
from harness.cell.status import Failed


def sweep(job: Job, claims: Claims) -> None:
    """Do the job, telling `claims` as it goes; each case leaves `case-<T>.safetensors` in the job's output folder.

    Raises:
        Unavailable: a package, the mode's function or the hardware isn't there.
        Failed: what was given isn't what was declared, or a result isn't what the op declares.
    """
    _check_environment(job)
    _check_library(job.library)
    op = load_op(job.op_folder)
    with claims.phase("inputs"):
        inputs = Inputs(op, job.inputs, job.cases)
        claims.inputs = inputs.digests
    run = _prepare(job, claims)
    for case in job.cases:
        _case(op, case, run, inputs, job.output, claims)
    # Only now: a call more before a capture could change its bits.
    measures.take(job, op, run, inputs, claims)


def _prepare(job: Job, claims: Claims) -> Run:
    """Import the candidate, then the mode, then load the candidate: no arithmetic before the mode is on."""
    path = job.op_folder / "candidates" / f"{job.candidate}.py"
    with claims.phase("import"), packages_needed():
        candidate = load_module(path, f"bitmatrix_candidate_{job.candidate}")
    numerics.require_device(job.device)
    if job.activation is not None:
        with claims.phase("activate"):
            activate(job.activation, claims)
    claims.precision["found"] = numerics.flags()
    numerics.pin()
    with claims.phase("load"), packages_needed():
        library = job.library.path if job.library is not None else None
        run: Run = candidate.load(Context(device=job.device, threads=job.threads, library=library))
    # Again, for a candidate that imports torch, or changes its switches, only now.
    numerics.pin()
    numerics.require_threads(job.threads)
    claims.precision["in_force"] = numerics.flags()
    return run


def _case(op: Op, case: int, run: Run, inputs: Inputs, output: Path, claims: Claims) -> None:
    # The results live in this frame only: they are freed before the next case allocates its own.
    with claims.phase(f"case {case}"):
        results = run(inputs.at(case))
    with claims.phase(f"write {case}"):
        claims.tensors[str(case)] = capture(op, case, results, output / f"case-{case}.safetensors")


def _check_environment(job: Job) -> None:
    wrong = [
        f"{name} is {os.environ.get(name)!r}, declared {value!r}"
        for name, value in sorted(job.environment.items())
        if os.environ.get(name) != value
    ]
    if wrong:
        raise Failed(f"the process was started with another environment: {'; '.join(wrong)}")


def _check_library(library: Library | None) -> None:
    if library is None:
        return
    digest = hashlib.sha256(library.path.read_bytes()).hexdigest()
    if digest != library.sha256:
        raise Failed(f"{library.path} has digest {digest} where {library.sha256} is declared")
