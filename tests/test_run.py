"""Failure stays where it is: every requested cell ends with a status and a reason, the others go on, and what is done
is never done again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from project import GOOD, OTHER, Project, in_run

from harness import cli, engine, lock
from harness.workspace import REPOSITORY

docker = pytest.mark.docker


def run(project: Project, *options: str, isolation: str = "docker") -> int:
    return cli.main(["matrix", *project.options(*options, isolation=isolation)])


def report(project: Project) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((project.latest() / "report.json").read_text())
    return loaded


def cells(project: Project) -> dict[str, tuple[str, str]]:
    return {
        name: (cell["status"], cell["reason"] or "") for name, cell in report(project)["bitmatrix"]["cells"].items()
    }


def left_running(project: Project) -> list[str]:
    """The containers of this project's cells alone: others may run beside this test, and a test may kill its own."""
    found = engine.client().containers.list(filters={"label": f"{engine.LABEL}=cell"}, ignore_removed=True)
    own = str(project.out)
    return [str(made.name) for made in found if any(mount["Source"].startswith(own) for mount in made.attrs["Mounts"])]


MISBEHAVING = {
    "raises": (in_run("raise ArithmeticError('boom | `x` <b>')"), "failed", "ArithmeticError: boom | `x` <b>"),
    "missing": ("import nowhere_to_be_found\n", "unavailable", "nowhere_to_be_found"),
    "exits": (in_run("os._exit(0)"), "crashed", "ended with exit code 0 without a record"),
    "aborts": (in_run("os.abort()"), "crashed", "ended by signal 6 without a record"),
    "shaped": (in_run("return {'out': inputs['x'][:, :4], 'grads.x': inputs['g']}"), "failed", "out"),
    "typed": (in_run("return {'out': inputs['x'].astype('f8'), 'grads.x': inputs['g']}"), "failed", "F64"),
}


@docker
def test_every_cell_ends_with_a_status_and_a_reason_and_the_others_go_on(tmp_path: Path) -> None:
    project = Project(
        tmp_path, {"good": GOOD, **{name: text for name, (text, _, _) in MISBEHAVING.items()}, "other": OTHER}
    )
    assert run(project) == 1
    found = cells(project)
    for name, (_, status, reason) in MISBEHAVING.items():
        assert found[name][0] == status, (name, found[name])
        assert reason in found[name][1]
    assert found["good"] == found["other"] == ("done", "")
    compared = report(project)["results"]["other"]["vs good"]["4"]
    assert not compared["out"][0]["equal"]
    assert compared["grads"]["x"] == {"equal": True, "differ": 0, "numel": 32, "max_abs": 0.0}
    assert not left_running(project)
    text = (project.latest() / "report.md").read_text()
    assert "ArithmeticError: boom" in text
    for name in MISBEHAVING:
        assert (project.latest() / report(project)["bitmatrix"]["cells"][name]["log"]).is_file()


LIAR = """
import hashlib, json, os, sys
from pathlib import Path
output = Path(json.load(open(sys.argv[1]))["output"])
def tensors(case, width=8):
    size = case * width * 4
    header = {{"out": {{"dtype": "F32", "shape": [case, width], "data_offsets": [0, size]}},
              "grads.x": {{"dtype": "F32", "shape": [case, width], "data_offsets": [size, 2 * size]}}}}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(2 * size)
def load(context):
    facts = {{}}
    for case in (1, 4):
        (output / f"case-{{case}}.safetensors").write_bytes(tensors(case))
        zero = hashlib.sha256(bytes(case * 32)).hexdigest()
        one = {{"dtype": "F32", "shape": [case, 8], "sha256": zero}}
        facts[str(case)] = {{"out": one, "grads.x": one}}
    claims = {{"schema": 1, "status": "done", "reason": None, "tensors": facts, "facts": {{}}}}
    {lie}
    f = None  # closes what the lie opened
    sys.stdout.flush()
    if not (output / "claims.json").is_symlink():
        (output / "claims.json").write_text(json.dumps(claims))
    sys.stdout.flush()
    os._exit(0)
"""

LIES = {
    "truthful": ("pass", "done", ""),
    "truncated": ("os.truncate(output / 'case-4.safetensors', 300)", "failed", "cut short"),
    "padded": ("open(output / 'case-4.safetensors', 'ab').write(b'x')", "failed", "cut short or added to"),
    "absent": ("os.remove(output / 'case-4.safetensors')", "failed", "case-4.safetensors"),
    "reshaped": ("(output / 'case-4.safetensors').write_bytes(tensors(4, 4))", "failed", "the op declares F32 [4, 8]"),
    "digest": ("facts['4']['out'] = {**one, 'sha256': '0' * 64}", "failed", "other tensors or digests"),
    "symlink": (
        "os.remove(output / 'case-4.safetensors'); (output / 'case-4.safetensors').symlink_to('/etc/passwd')",
        "failed",
        "is a symbolic link",
    ),
    "fifo": (
        "os.remove(output / 'case-4.safetensors'); os.mkfifo(output / 'case-4.safetensors')",
        "failed",
        "is no regular file",
    ),
    "header": (
        "open(output / 'case-4.safetensors', 'r+b').write((1 << 33).to_bytes(8, 'little'))",
        "failed",
        "can't hold a header of 8589934592",
    ),
    "sparse": (
        "f = open(output / 'case-4.safetensors', 'r+b'); f.truncate(1 << 34); f.write((1 << 33).to_bytes(8, 'little'))",
        "failed",
        "a header of 8589934592 bytes is refused",
    ),
    "claims_link": ("(output / 'claims.json').symlink_to('/etc/passwd')", "failed", "refused"),
    "claims_nan": ("claims['facts'] = {'x': float('nan')}", "failed", "NaN is no JSON number"),
    "claims_status": ("claims['status'] = 'unavailable'", "failed", "says unavailable but ended with exit code 0"),
    "claims_huge": ("claims['facts'] = {'x': 'y' * (20 << 20)}", "failed", "larger than 16 MiB"),
}


@docker
def test_a_capture_that_is_not_what_it_says_is_refused_and_named(tmp_path: Path) -> None:
    project = Project(tmp_path, {name: LIAR.format(lie=lie) for name, (lie, _, _) in LIES.items()})
    assert run(project) == 1
    found = cells(project)
    for name, (_, status, reason) in LIES.items():
        assert found[name][0] == status, (name, found[name])
        assert reason in found[name][1], (name, found[name])


@docker
def test_what_is_done_is_not_run_again_until_something_that_counts_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})

    def ran() -> set[str]:
        capsys.readouterr()
        assert run(project, *extra) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
        return {line.split()[1] for line in lines if "kept" not in line}

    extra: list[str] = []
    assert ran() == {"good", "other"}
    assert ran() == set()
    candidate = project.op / "candidates" / "other.py"
    candidate.write_text(candidate.read_text() + "# another file\n")
    assert ran() == {"other"}, "a candidate's file is its own alone"
    (project.op / "inputs.json").write_text("{}")
    (project.op / "__pycache__").mkdir()
    (project.op / "__pycache__" / "x.pyc").write_bytes(b"")
    assert ran() == set(), "what can't change a capture is no part of its key"
    project.cpu["environment"] = {"OPENBLAS_NUM_THREADS": "1"}
    project.write()
    assert ran() == {"good", "other"}
    extra[:] = ["--fresh"]
    assert ran() == {"good", "other"}
    extra[:] = ["--case", "4"]
    assert ran() == {"good", "other"}, "a narrowed run is another experiment"
    assert "not comparable" in (project.latest() / "report.md").read_text()


@docker
def test_a_failed_cell_is_run_again_and_its_failure_does_not_stay(tmp_path: Path) -> None:
    flag = "if not (Path('/bitmatrix/inputs') / 'fixed').exists(): raise RuntimeError('not yet')"
    project = Project(tmp_path, {"good": GOOD, "mends": in_run(flag)})
    assert run(project) == 1
    assert cells(project)["mends"][0] == "failed"
    (inputs,) = (project.out / "inputs").glob("scale-*")
    (inputs / "fixed").touch()
    assert run(project) == 0
    assert cells(project)["mends"] == ("done", "")


@docker
def test_a_timeout_names_itself_and_leaves_nothing_running(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "hangs": in_run("time.sleep(600)")})
    project.cpu["limits"] = {"seconds": 5, "memory_gib": 1, "processes": 64}
    project.write()
    assert run(project) == 1
    assert cells(project)["hangs"] == ("timed_out", "stopped: its time was over")
    assert cells(project)["good"][0] == "done"
    assert not left_running(project)


@docker
def test_too_much_memory_ends_the_cell_alone(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "hungry": in_run("np.ones(1 << 29)")})
    assert run(project) == 1
    assert cells(project)["hungry"][0] in ("crashed", "failed")
    assert cells(project)["good"][0] == "done"


def background(project: Project, *options: str, isolation: str = "docker", **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", "matrix", *project.options(*options, isolation=isolation)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **more.pop("env", {})}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=REPOSITORY, **more
    )


def eventually(condition: Callable[[], object], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


@docker
def test_ctrl_c_loses_nothing_done_and_the_next_run_carries_on(tmp_path: Path) -> None:
    wait = "if not (Path('/bitmatrix/inputs') / 'go').exists(): time.sleep(600)"
    project = Project(tmp_path, {"good": GOOD, "waits": in_run(wait), "other": OTHER})
    process = background(project)
    assert eventually(lambda: len(list((project.out / "cells").glob("[0-9a-f]*"))) == 1 and left_running(project))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "what is done is kept" in said
    assert not left_running(project)
    assert not list(project.out.rglob("*.tmp"))
    (inputs,) = (project.out / "inputs").glob("scale-*")
    (inputs / "go").touch()
    again = background(project)
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "good in stack golden: done, kept" in said


@docker
def test_a_killed_run_leaves_no_container_and_the_next_run_carries_on(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "waits": in_run("time.sleep(8)")})
    process = background(project)
    assert eventually(lambda: (project.out / "cells").is_dir() and left_running(project))
    process.kill()
    process.communicate()
    assert eventually(lambda: not left_running(project), seconds=20), "the lifeline ends the cell"
    assert run(project) == 0
    assert cells(project)["waits"][0] == "done"


@docker
def test_a_container_killed_from_outside_is_a_crash_of_its_cell_alone(tmp_path: Path) -> None:
    project = Project(tmp_path, {"waits": in_run("time.sleep(600)"), "good": GOOD})
    process = background(project)
    assert eventually(lambda: left_running(project))
    time.sleep(1)
    engine.client().containers.get(left_running(project)[0]).kill()
    process.communicate(timeout=120)
    assert cells(project)["waits"] == ("crashed", "ended by signal 9 without a record")
    assert cells(project)["good"][0] == "done"


class Relay:
    """The engine behind a socket of the test's own, which can be cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect("/var/run/docker.sock")
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while block := source.recv(1 << 16):
                target.sendall(block)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self) -> None:
        self.path.unlink()
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    made = Relay(Path(f"/tmp/bitmatrix-relay-{os.getpid()}.sock"))
    yield made
    if made.path.exists():
        made.cut()


@docker
def test_an_engine_that_goes_away_crashes_the_rest_and_keeps_what_is_done(tmp_path: Path, relay: Relay) -> None:
    project = Project(tmp_path, {"good": GOOD, "waits": in_run("time.sleep(8)"), "other": OTHER})
    process = background(project, env={"DOCKER_HOST": f"unix://{relay.path}"})
    assert eventually(lambda: len(list((project.out / "cells").glob("[0-9a-f]*"))) == 1 and left_running(project))
    time.sleep(1)
    relay.cut()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert "Traceback" not in said
    found = cells(project)
    assert found["good"] == ("done", "")
    assert found["waits"][0] == found["other"][0] == "crashed"
    assert eventually(lambda: not left_running(project), seconds=60)
    assert run(project) == 0
    assert {status for status, _ in cells(project).values()} == {"done"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 4 MiB; only root of a machine (not of a container) can have one."""
    folder = tmp_path / "out"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_fails_cells_with_that_reason_and_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    big = in_run("(output / 'x').write_bytes(bytes(1 << 24))")
    project = Project(tmp_path, {"good": GOOD, "big": big, "other": OTHER})
    assert project.out == small_disk
    assert run(project, isolation="host") == 1
    found = cells(project)
    assert found["good"][0] == "done"
    assert found["big"][0] == "crashed"
    assert "no space left on the disk that holds out/" in found["big"][1]
    assert found["other"][0] == "done"


@docker
def test_a_stack_that_cannot_be_built_does_not_keep_the_others_from_the_table(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})
    project.add_broken_stack()
    project.cpu["candidates"]["other"]["stack"] = "broken"  # type: ignore[index]
    project.write()
    assert run(project) == 1
    found = cells(project)
    assert found["good"][0] == "done"
    assert found["other"][0] == "failed"
    assert "stack broken: fetching the lock's packages failed" in found["other"][1]
    assert (project.latest() / report(project)["bitmatrix"]["cells"]["other"]["log"]).is_file()


@docker
def test_docker_and_venv_give_the_same_report_but_for_where_they_ran(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})
    results = []
    for isolation in ("docker", "venv"):
        assert run(project, isolation=isolation) == 0
        loaded = report(project)
        assert loaded["bitmatrix"]["isolation"] == isolation
        results.append((loaded["results"], loaded["bitmatrix"]["digests"]))
    assert results[0] == results[1]


def test_the_collector_gives_the_same_report_again_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, {"good": GOOD, "other": OTHER})
    assert run(project, isolation="host") == 0
    folder = project.latest()
    before = (folder / "report.json").read_bytes(), (folder / "report.md").read_bytes()
    shutil.rmtree(project.out / "cells")
    (project.out / "comparisons.json").unlink()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    engine.client.cache_clear()
    assert cli.main(["collect", *project.options(), str(folder)]) == 0
    engine.client.cache_clear()
    assert ((folder / "report.json").read_bytes(), (folder / "report.md").read_bytes()) == before


TAMPERED = {
    "a byte of a tensor": lambda folder: _flip(folder / "good" / "case-4.safetensors"),
    "the recorded digest": lambda folder: _edit(
        folder, lambda record: record["tensors"]["4"]["out"].update(sha256="0" * 64)
    ),
    "the recorded shape": lambda folder: _edit(folder, lambda record: record["tensors"]["4"]["out"].update(shape=[1])),
    "the inputs": lambda folder: _edit(folder, lambda record: record["identity"]["inputs"].update(x={})),
    "the device": lambda folder: _edit(folder, lambda record: record["identity"]["device"].update(model="NVIDIA B200")),
    "half a record": lambda folder: _cut(folder / "good" / "record.json"),
    "half a file": lambda folder: _cut(folder / "good" / "case-4.safetensors"),
}


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)


def _edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "good" / "record.json"
    record = json.loads(path.read_text())
    change(record)
    if "0" * 64 in json.dumps(record["tensors"]):
        tensor = folder / "good" / "case-4.safetensors"
        os.utime(tensor)
    path.unlink()
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("what", TAMPERED)
def test_a_capture_that_does_not_hold_is_no_part_of_the_table(tmp_path: Path, what: str) -> None:
    project = Project(tmp_path, {"other": OTHER, "good": GOOD})
    assert run(project, isolation="host") == 0
    folder = project.latest()
    TAMPERED[what](folder)
    assert cli.main(["collect", *project.options(isolation="host"), str(folder)]) == 2
    assert cells(project)["good"][0] == "failed"
    assert "the capture was refused" in cells(project)["good"][1]
    assert "good" not in report(project)["results"]
    assert cells(project)["other"][0] == "done"


@pytest.mark.parametrize("what", ["a byte of a tensor", "half a record", "half a file"])
def test_a_kept_capture_that_was_damaged_is_made_again(tmp_path: Path, what: str) -> None:
    project = Project(tmp_path, {"good": GOOD})
    assert run(project, isolation="host") == 0
    before = report(project)["bitmatrix"]["digests"]
    (kept,) = (project.out / "cells").glob("[0-9a-f]*")
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "good").symlink_to(kept)
    TAMPERED[what](beside)
    (project.out / "cells" / f".{kept.name[:12]}-killed.tmp").mkdir()
    assert run(project, isolation="host") == 0
    assert report(project)["bitmatrix"]["digests"] == before
    assert not list((project.out / "cells").glob(".*.tmp"))


def test_asking_for_docker_without_an_engine_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    engine.client.cache_clear()
    project = Project(tmp_path, {"good": GOOD})
    assert run(project) == 2
    engine.client.cache_clear()
    assert "no Docker engine answers" in capsys.readouterr().err
    assert not project.out.exists()


def test_a_place_that_cannot_be_written_is_named_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, {"good": GOOD})
    project.out.write_text("a file, where a folder is wanted")
    assert run(project, isolation="host") == 1
    said = capsys.readouterr().err
    assert str(project.out) in said
    assert "--out and --cache choose places" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stack", "torhc"], "--stack torhc: the matrix has no such stack for cpu"),
        (["--case", "3"], "--case 3: the matrix has no such case for cpu"),
        (["--mode", "vllm"], "--mode vllm: the matrix has no such mode for cpu"),
        (["--device", "cuda"], "the matrix declares no device cuda"),
    ],
)
def test_narrowing_to_what_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    project = Project(tmp_path, {"good": GOOD})
    assert run(project, *options, isolation="host") == 2
    assert message in capsys.readouterr().err
    assert not project.out.exists()


def test_a_lock_that_does_not_match_its_requirements_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, {"good": GOOD})
    project.cpu["stacks"]["golden"] = {"base": "debian12", "requirements": ["numpy==2.4.5"]}  # type: ignore[index]
    project.write()
    assert run(project, isolation="venv") == 2
    assert "pins numpy 2.4.6, the matrix wants numpy==2.4.5; make it again: nox -s lock" in capsys.readouterr().err
    assert not project.out.exists()


def test_a_version_other_than_the_locks_is_a_finding_in_host_isolation(tmp_path: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    path = project.root / "images" / "locks" / "cpu" / "golden-x86_64-py3.11.txt"
    other = ["numpy==2.4.5", "safetensors==0.8.0"]
    pins = [replace(pin, version="2.4.5") if pin.name == "numpy" else pin for pin in lock.read(path).pins.values()]
    lock.write(path, stack="golden", device="cpu", requirements=other, pins=pins)
    project.cpu["stacks"]["golden"]["requirements"] = other  # type: ignore[index]
    project.write()
    assert run(project, isolation="host") == 0
    found = report(project)["bitmatrix"]["findings"]
    message = "numpy is 2.4.6, its lock pins 2.4.5"
    assert {"severity": "warning", "about": "golden", "message": message} in found
    assert f"| warning | `golden` | {message} |" in (project.latest() / "report.md").read_text()


DIES_WHILE_MEASURED = """
import os
import numpy as np
calls = []
def load(context):
    def run(inputs):
        calls.append(1)
        if len(calls) > 2:
            os.abort()
        return {"out": inputs["x"] * np.float32(3), "grads.x": inputs["g"] * np.float32(3)}
    return run
"""

OTHER_EACH_PROCESS = """
import os
import numpy as np
noise = np.float32(int.from_bytes(os.urandom(2), "little"))
def load(context):
    return lambda inputs: {"out": inputs["x"] + noise, "grads.x": inputs["g"] * np.float32(3)}
"""


@docker
def test_measures_are_on_record_and_what_one_breaks_loses_no_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = {"good": GOOD, "dies": DIES_WHILE_MEASURED, "random": OTHER_EACH_PROCESS}
    project = Project(tmp_path, candidates)
    assert run(project) == 0
    project.cpu["measures"] = {"repeatability": {"calls": 1}, "batch_invariance": {"quick": True}}
    project.write()
    assert run(project) == 0
    assert all(status == "done" for status, _ in cells(project).values())
    measures = report(project)["bitmatrix"]["measures"]
    assert measures["good"]["repeatability"]["result"] == {"calls": 1, "differ": {}, "complete": True}
    assert measures["good"]["second_process"] == {"status": "done", "reason": None, "differ": {}}
    assert measures["dies"]["repeatability"]["status"] == "failed"
    assert "ended by signal 6" in measures["dies"]["repeatability"]["reason"]
    assert measures["random"]["second_process"]["differ"] == {"1": ["out"], "4": ["out"]}
    verdicts = report(project)["bitmatrix"]["verdicts"]
    assert verdicts["random"]["kinds"][0] == "not_repeatable"
    assert (project.latest() / "report.html").is_file()
    capsys.readouterr()
    assert run(project, "--no-measures") == 0
    assert "kept" in capsys.readouterr().err, "a cell that measured more than is wanted stays"
