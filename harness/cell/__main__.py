"""`python -P -s -B -m harness.cell JOB.json`: run one cell in this process. The host starts it, not a user."""

from __future__ import annotations

import faulthandler
import io
import os
import signal
import sys
import traceback
from pathlib import Path

from harness.cell import lifeline
from harness.cell.claims import Claims
from harness.cell.facts import collect
from harness.cell.job import BadJob, Job, read
from harness.cell.op import Unavailable
from harness.cell.packages import packages_needed
from harness.cell.status import Failed, Status

_REASON_LENGTH = 2000


def main(arguments: list[str]) -> Status:
    """Read the job, run it and write its claims; the status is the process' exit code."""
    # Ctrl-C ends the process at once: Python would wait for the end of a library's call.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        [path] = arguments
        job = read(Path(path))
    except BadJob as error:
        print(error, file=sys.stderr)
        return Status.FAILED
    if job.lifeline:
        lifeline.start()
    environment = dict(os.environ)
    claims = Claims(cell=job.cell)
    claims.status, claims.reason = _run(job, claims)
    with claims.phase("facts"):
        claims.facts = collect(job.device, job.environment, environment)
    try:
        claims.write(job.output)
    except OSError as error:
        print(f"the claims can't be written: {error}; {claims.status.value}: {claims.reason}", file=sys.stderr)
        return Status.FAILED
    print(claims.status.value if claims.reason is None else f"{claims.status.value}: {claims.reason}")
    return claims.status


def _run(job: Job, claims: Claims) -> tuple[Status, str | None]:
    try:
        # Here, because numpy comes with it: the lifeline is up before, and its absence is a fact about the stack.
        with claims.phase("start"), packages_needed():
            from harness.cell.sweep import sweep
        sweep(job, claims)
    # SystemExit too: a library that calls sys.exit must not pass for a cell that is done.
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return _ending(error)
    return Status.DONE, None


def _ending(error: BaseException) -> tuple[Status, str]:
    if isinstance(error, Unavailable):
        return Status.UNAVAILABLE, str(error)
    if isinstance(error, Failed):
        return Status.FAILED, str(error)
    return Status.FAILED, "".join(traceback.format_exception_only(type(error), error)).strip()[:_REASON_LENGTH]


if __name__ == "__main__":
    code = main(sys.argv[1:]).exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    # Past the interpreter's own end: what a framework hangs on there (threads, CUDA teardown) is no part of the cell.
    os._exit(code)
