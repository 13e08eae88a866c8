"""A real headless browser, driven over its DevTools pipe: no server, no network, no driver package."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_SECONDS = 60
_AT_3_AND_4 = """
import fcntl, os, sys
# Out of the way first: either may be 3 or 4 itself.
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for place, end in enumerate(ends, 3):
    os.dup2(end, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Starts a program with two descriptors where the DevTools pipe is: 3 to read from, 4 to write to."""


class Page:
    """One open page; `problems` holds every exception, console error and refused load since it was opened."""

    def __init__(self, to: BinaryIO, answers: BinaryIO) -> None:
        self._to, self._answers, self._rest = to, answers, b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.problems: list[str] = []

    def open(self, path: Path) -> None:
        """Load a file and wait for its load event."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        until = time.monotonic() + _SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read(until)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        until = time.monotonic() + _SECONDS
        while True:
            found = self._read(until)
            if found.get("id") == number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result

    def run(self, script: str) -> Any:
        """The value of a script's last expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key, as a keyboard does."""
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def shot(self, path: Path) -> bytes:
        """A PNG of what is seen."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser didn't answer in time"
            part = os.read(self._answers.fileno(), 1 << 20)
            assert part, "the browser went away"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        if "method" in found:
            self._events.append(found)
            self._note(found)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
        request = event["method"] == "Network.requestWillBeSent"
        if event["method"] in kinds or (request and not event["params"]["request"]["url"].startswith("file:")):
            self.problems.append(json.dumps(event["params"])[:500])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with a profile of its own below `folder`, gone at the end."""
    assert PROGRAM is not None
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    arguments = [PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    arguments += [f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe", "--no-first-run"]
    started = [sys.executable, "-c", _AT_3_AND_4, str(command_read), str(answer_write), *arguments]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            started,
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    os.close(command_read)
    os.close(answer_write)
    try:
        with os.fdopen(command_write, "wb") as to, os.fdopen(answer_read, "rb") as answers:
            yield Page(to, answers)
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
