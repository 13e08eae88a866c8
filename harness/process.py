"""Host processes with a log, that end with their reason in words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BitmatrixError

_TAIL_BYTES = 64 << 10
_ERROR = re.compile(r"^(ERROR|E:|fatal|[\w.]*(Error|Exception): )|error: ")
_COMPILER = re.compile(r":[0-9]+: (fatal )?error: |^nvcc fatal")
_NO_REASON = re.compile(
    r"error: (subprocess-exited-with-error|metadata-generation-failed)|ERROR: Failed (building|to build)"
)
_SAYS_NOTHING = (
    "error: subprocess-exited-with-error",
    "error: metadata-generation-failed",
    "error: failed-wheel-build-for-install",
)
"""How pip closes the log of a build that failed: the reason stands above."""


def logged(
    command: list[str],
    *,
    log: Path,
    what: str,
    environment: Mapping[str, str] | None = None,
    place: Path | None = None,
) -> None:
    """Run `command` with its output added to `log`; raises BitmatrixError with the log's own words on failure."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        stream.write(f"$ {' '.join(command)}\n".encode())
        stream.flush()
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=place,
                env=None if environment is None else dict(environment),
                check=False,
            )
        except OSError as error:
            raise BitmatrixError(f"{what}: {command[0]} can't be started ({error.strerror})") from error
    if ended.returncode:
        raise BitmatrixError(f"{what} failed (exit {ended.returncode}): {reason_in(log)}; the whole log: {log}")


def reason_in(log: Path) -> str:
    """What a log says went wrong, in at most 400 characters.

    Its first compiler error (what follows is its wake), else its last error lines, else its last line.
    """
    with log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not line.endswith(_SAYS_NOTHING)]
    errors = [line for line in lines if _ERROR.search(line) and not _NO_REASON.search(line)]
    errors = errors or [line for line in lines if "Error: " in line]
    compiler = [line for line in lines if _COMPILER.search(line)]
    text = " / ".join(compiler[:1] or errors[-2:] or lines[-1:] or ["it printed nothing"])
    return "".join(character if character.isprintable() else " " for character in text)[:400]
