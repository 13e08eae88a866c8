"""Containers are what was asked for, and none outlives its use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from harness import engine
from harness.base import BaseImage
from harness.engine import EngineError, Mount, Request
from harness.isolation import _restrictions
from harness.matrix import Limits
from harness.workspace import REPOSITORY

pytestmark = pytest.mark.docker


def shell(base: BaseImage, script: str, **arguments: object) -> Request:
    return Request(image=base.name, command=["/bin/sh", "-c", script], purpose="test", **arguments)  # type: ignore[arg-type]


def run(request: Request, tmp_path: Path, seconds: float = 60) -> tuple[engine.Ending, str]:
    log = tmp_path / "log.txt"
    with engine.container(request) as made:
        ending = engine.run(made, log=log, seconds=seconds)
    return ending, log.read_text() if log.exists() else ""


def running() -> set[str]:
    return {str(made.name) for made in engine.client().containers.list(filters={"label": f"{engine.LABEL}=test"})}


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


def test_a_container_has_every_restriction(base_image: BaseImage, tmp_path: Path) -> None:
    script = """
    id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; ls /sys/class/net
    touch /etc/x 2>&1; touch /mnt/ro/x 2>&1; touch /mnt/rw/x && echo writable
    printf '#!/bin/sh\\necho executable' > /tmp/x && chmod +x /tmp/x && /tmp/x
    cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
    cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; df -k /dev/shm | tail -1
    """
    (tmp_path / "rw").mkdir()
    (tmp_path / "rw").chmod(0o777)
    (tmp_path / "ro").mkdir()
    options = _restrictions(Limits(memory_gib=1, processes=64)) | {"user": "12345:12345"}
    mounts = (Mount(tmp_path / "ro", "/mnt/ro"), Mount(tmp_path / "rw", "/mnt/rw", writable=True))
    ending, log = run(shell(base_image, script, options=options, mounts=mounts), tmp_path)
    assert ending.exit_code == 0
    lines = log.split("\n")
    assert lines[0] == "12345"
    assert "CapEff:\t0000000000000000" in lines
    assert "CapBnd:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    assert lines[lines.index("lo")] == "lo"
    assert "eth0" not in lines
    assert log.count("Read-only file system") == 2
    assert "writable" in lines
    assert "executable" in lines
    assert str(1 << 30) in lines
    assert "64" in lines


def test_nothing_of_the_hosts_environment_leaks(
    base_image: BaseImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITMATRIX_LEAK", "leaked")
    _, log = run(shell(base_image, "env", environment={"DECLARED": "yes"}), tmp_path)
    assert "BITMATRIX_LEAK" not in log
    assert "DECLARED=yes" in log


def test_a_container_is_gone_after_its_use(base_image: BaseImage, tmp_path: Path) -> None:
    run(shell(base_image, "true"), tmp_path)

    def fail_inside() -> None:
        with engine.container(shell(base_image, "sleep 600")) as made:
            made.start()
            assert made.name in running()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not running()


def test_a_timeout_kills_the_container_not_the_client(base_image: BaseImage, tmp_path: Path) -> None:
    clock = time.monotonic()
    ending, log = run(shell(base_image, "echo started; sleep 600"), tmp_path, seconds=2)
    assert ending.exit_code is None
    assert time.monotonic() - clock < 20
    assert "started" in log
    assert not running()


def test_a_container_killed_by_others_says_so(base_image: BaseImage, tmp_path: Path) -> None:
    with engine.container(shell(base_image, "sleep 600")) as made:
        killer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import time, docker; time.sleep(1); docker.from_env().containers.get({made.id!r}).kill()",
            ]
        )
        ending = engine.run(made, log=tmp_path / "log.txt", seconds=60)
        killer.wait()
    assert ending.exit_code == 137


def test_memory_beyond_the_limit_is_told_apart(base_image: BaseImage, tmp_path: Path) -> None:
    options = {"mem_limit": "64m", "memswap_limit": "64m"}
    request = shell(base_image, "exec python3 -c 'bytearray(1 << 28)'", options=options)
    ending, _ = run(request, tmp_path)
    assert ending.exit_code == 137
    assert ending.out_of_memory


def test_an_endless_log_is_cut(base_image: BaseImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_LOG_BYTES", 10_000)
    _, log = run(shell(base_image, "yes | head -c 1000000"), tmp_path)
    assert 10_000 <= len(log) < 10_200
    assert "the log is cut here" in log


HOLDER = """
import sys
from pathlib import Path
from harness import engine
request = engine.Request(image={image!r}, command=["/bin/sh", "-c", {script!r}], purpose="test")
with engine.container(request) as made:
    print(made.name, flush=True)
    engine.run(made, log=Path({log!r}), seconds=600)
"""


def hold(base: BaseImage, script: str, tmp_path: Path, *within: str) -> tuple[subprocess.Popen[str], str]:
    """Another process that holds a container; `within` starts it."""
    code = HOLDER.format(image=base.name, script=script, log=str(tmp_path / "log.txt"))
    holder = subprocess.Popen(
        [*within, sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert holder.stdout is not None
    with holder.stdout:
        name = holder.stdout.readline().strip()
    assert eventually(lambda: name in running())
    return holder, name


def test_ctrl_c_leaves_no_container(base_image: BaseImage, tmp_path: Path) -> None:
    holder, name = hold(base_image, "sleep 600", tmp_path)
    holder.send_signal(signal.SIGINT)
    assert holder.wait(timeout=20) != 0
    assert name not in running()


def test_a_killed_owner_cuts_the_lifeline(base_image: BaseImage, tmp_path: Path) -> None:
    # What a cell does on its standard input's end: nobody is left to remove the container by name.
    holder, name = hold(base_image, "cat > /dev/null", tmp_path)
    holder.kill()
    holder.wait()
    assert eventually(lambda: name not in running())
    engine.sweep()


def test_what_a_killed_owner_left_is_swept_and_nothing_else(base_image: BaseImage, tmp_path: Path) -> None:
    holder, name = hold(base_image, "trap '' HUP; sleep 600", tmp_path)
    with engine.container(shell(base_image, "sleep 600")) as mine:
        mine.start()
        holder.kill()
        holder.wait()
        assert name in engine.sweep()
        assert name not in running()
        assert mine.name in running()


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs a process namespace of its own")
def test_the_container_of_a_process_in_another_namespace_is_left_alone(base_image: BaseImage, tmp_path: Path) -> None:
    # Its number is another process' here, or none's: both once looked like an owner that is gone.
    holder, name = hold(base_image, "sleep 600", tmp_path, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        assert name not in engine.sweep()
        assert name in running()
    finally:
        holder.kill()
        holder.wait()
        engine.remove(name)


@pytest.mark.parametrize(
    ("part", "other"), [(0, "elsewhere"), (1, "00000000-0000-0000-0000-000000000000"), (2, "1"), (3, "54321")]
)
def test_only_a_process_that_could_be_seen_here_can_be_gone(part: int, other: str) -> None:
    place, pid, started = engine._owner().split(":")
    assert engine._gone(f"{place}:{pid}:{started}") is False
    assert engine._gone(f"{place}:{pid}:1") is True
    assert engine._gone(f"{place}:{1 << 22}:{started}") is True
    parts = place.split("/")
    parts[part] = other
    assert engine._gone(f"{'/'.join(parts)}:{pid}:1") is None
    assert engine._gone("") is None


def test_what_nobody_can_tell_of_goes_a_day_after_its_end(
    base_image: BaseImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_gone", lambda owner: None if owner == engine._owner() else False)
    with engine.container(shell(base_image, "true")) as mine:
        assert engine.run(mine, log=tmp_path / "log.txt", seconds=60).exit_code == 0
        assert mine.name not in engine.sweep()
        monkeypatch.setattr(engine, "_LEFT", timedelta(0))
        assert mine.name in engine.sweep()
    with engine.container(shell(base_image, "sleep 600")) as mine:
        mine.start()
        assert mine.name not in engine.sweep()


def test_a_missing_engine_is_said_in_words_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    engine.client.cache_clear()
    try:
        with pytest.raises(EngineError, match=r"no Docker engine answers.*--isolation venv"):
            engine.client()
        assert not engine.answers()
    finally:
        engine.client.cache_clear()
