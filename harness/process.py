"""Host processes with a log, that end with their reason in words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness.errors import BitmatrixError

_TAIL_BYTES = 64 << 10


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
    """What a log says went wrong: its last error lines, else its last line; one line of at most 400 characters."""
    with log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _TAIL_BYTES))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "E:", "fatal")) or "error: " in line]
    text = " / ".join(errors[-2:] or lines[-1:] or ["it printed nothing"])
    return "".join(character if character.isprintable() else " " for character in text)[:400]
