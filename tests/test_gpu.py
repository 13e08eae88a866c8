"""What the host says of its GPUs is what NVML says, only like ones run together, and one cell has a GPU at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvml import FakeGpu, compile_double, environment
from project import GOOD, Project, in_run

from harness import doctor, engine, gpu, isolation, lease, matrix, toolkit
from harness.base import BaseImage
from harness.capture import Verdict
from harness.environment import Environment
from harness.errors import BadInput, BitmatrixError, Unavailable
from harness.gpu import Gpu
from harness.isolation import Task
from harness.lease import Lease
from harness.matrix import Limits
from harness.plan import Cell, IsolationName, Plan
from harness.run import on_lease
from harness.workspace import REPOSITORY, Workspace

A, B, C = (FakeGpu(uuid=f"GPU-{letter * 8}") for letter in "abc")
B200 = FakeGpu(uuid="GPU-dddddddd", name="NVIDIA B200", capability="10.0", cores=18944)


def physical(fake: FakeGpu = A, index: int = 0) -> Gpu:
    return Gpu(
        index=index,
        uuid=fake.uuid,
        name=fake.name,
        capability=fake.capability,
        multiprocessors=132,
        memory_bytes=None,
        mig=False,
        ecc=True,
        parent=fake.uuid,
    )


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_double(tmp_path_factory.mktemp("nvml"))


def python(code: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    variables = {**variables, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)


CHOOSE = """
import json, sys
from copy import deepcopy
from dataclasses import asdict
from harness import device, errors, gpu
try:
    found = device.find("cuda", {asked!r})
    states = [asdict(gpu.state(one)) for one in found.gpus]
    print(json.dumps({{**asdict(found), "states": states, "fabric": [gpu.fabric(one) for one in found.gpus]}}))
except errors.BadInput as error:
    print(json.dumps({{"refused": str(error)}}))
"""


def find(double: Path, gpus: list[FakeGpu], *asked: str, visible: str | None = None, **driver: Any) -> dict[str, Any]:
    variables = environment(double, gpus, **driver)
    if visible is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    done = python(CHOOSE.format(asked=asked), variables)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def uuids(found: dict[str, Any]) -> list[str]:
    return [one["uuid"] for one in found["gpus"]]


def test_every_fact_is_nvmls(double: Path) -> None:
    busy = FakeGpu(uuid="GPU-1", pids=(4711, 4712), reasons=0x1 | 0x4 | 0x40, fabric=1, ecc=False)
    found = find(double, [busy])
    assert found["driver"] == {"version": "580.95.05", "cuda": "13.0"}
    (one,) = found["gpus"]
    assert (one["name"], one["capability"], one["multiprocessors"]) == ("NVIDIA H200", "9.0", 132)
    assert (one["mig"], one["ecc"], one["memory_bytes"]) == (False, False, 150 << 30)
    assert found["facts"] == {
        "kind": "cuda",
        "architecture": os.uname().machine,
        "model": "NVIDIA H200",
        "features": None,
        "driver": "580.95.05",
        "capability": "9.0",
        "multiprocessors": "132",
        "mig": "off",
        "ecc": "off",
    }
    (now,) = found["states"]
    assert now["throttle"] == ["power cap", "too hot (hardware slowdown)"]
    assert (now["sm_mhz"], now["memory_mhz"], now["power_w"]) == (1980, 3201, 76.5)
    assert now["held_down_ns"] == {"power": 7, "thermal": 5}
    assert [process["pid"] for process in now["processes"]] == [4711, 4712]
    assert found["fabric"] == ["not started"]


def test_an_instance_of_mig_stands_for_its_gpu(double: Path) -> None:
    found = find(double, [FakeGpu(uuid="GPU-1", instances=("MIG-1", "MIG-2"))])
    assert uuids(found) == ["MIG-1", "MIG-2"]
    assert {one["parent"] for one in found["gpus"]} == {"GPU-1"}
    assert (found["facts"]["mig"], found["facts"]["multiprocessors"]) == ("on", "16")
    assert "needs an instance" in find(double, [FakeGpu(uuid="GPU-1", instances=())])["refused"]


def test_the_largest_group_of_like_gpus_runs_and_the_others_are_named(double: Path) -> None:
    found = find(double, [B200, A, B])
    assert uuids(found) == [A.uuid, B.uuid]
    assert len(found["left_out"]) == 1
    assert "GPU 0 (NVIDIA B200, GPU-dddddddd): unlike GPU 1" in found["left_out"][0]
    other_ecc = FakeGpu(uuid="GPU-9", ecc=False)
    assert uuids(find(double, [A, B, other_ecc])) == [A.uuid, B.uuid]


@pytest.mark.parametrize(
    ("asked", "visible", "chosen"),
    [
        ((), None, [A, B, C]),
        (("1",), None, [B]),
        (("GPU-cccccccc", "0"), None, [A, C]),
        ((), "2,0", [A, C]),
        ((), "GPU-bbbb", [B]),
        ((), "0,7,1", [A]),
        (("0",), "0,1", [A]),
    ],
)
def test_cuda_visible_devices_and_the_option_restrict_what_is_considered(
    double: Path, asked: tuple[str, ...], visible: str | None, chosen: list[FakeGpu]
) -> None:
    found = find(double, [A, B, C], *asked, visible=visible)
    assert uuids(found) == [fake.uuid for fake in chosen]
    assert len(found["left_out"]) == 3 - len(chosen)


@pytest.mark.parametrize(
    ("gpus", "asked", "visible", "message"),
    [
        ([A], ("3",), None, "--gpu 3: no such GPU here"),
        ([A, B], ("1",), "0", "--gpu 1: no such GPU here, or CUDA_VISIBLE_DEVICES hides it"),
        ([A], (), "", "CUDA_VISIBLE_DEVICES='' leaves none"),
        ([A, B200], ("0", "1"), None, "unlike GPUs can't share one table"),
        ([], (), None, "has no GPU that a process could use"),
    ],
)
def test_a_gpu_that_cannot_be_had_is_refused_in_words(
    double: Path, gpus: list[FakeGpu], asked: tuple[str, ...], visible: str | None, message: str
) -> None:
    assert message in find(double, gpus, *asked, visible=visible)["refused"]


def test_no_driver_is_said_in_words_and_nothing_is_run(tmp_path: Path) -> None:
    if not Path("/proc/driver/nvidia/version").exists():
        done = python(CHOOSE.format(asked=()), dict(os.environ))
        assert "no NVIDIA driver answers (libnvidia-ml.so.1 isn't installed)" in done.stdout


@pytest.mark.parametrize(
    ("pins", "cuda"),
    [
        ({"torch": "2.13.0+cu130"}, "13.0"),
        ({"torch": "2.13.0", "nvidia-cuda-runtime": "13.0.96"}, "13.0"),
        ({"nvidia-cuda-runtime-cu12": "12.8.90"}, "12.8"),
        ({"torch": "2.13.0+cpu"}, None),
        ({"numpy": "2.4.6"}, None),
    ],
)
def test_a_locks_cuda_is_read_from_its_pins(pins: dict[str, str], cuda: str | None) -> None:
    assert gpu.cuda_of(pins) == cuda


@pytest.mark.parametrize(
    ("cuda", "version", "enough"),
    [("13.0", "580.65.06", True), ("13.0", "570.86.15", False), ("12.8", "525.60.13", True), ("12.0", "470.1", False)],
)
def test_an_old_driver_is_told_with_both_versions(cuda: str, version: str, enough: bool) -> None:
    lacks = gpu.driver_lacks(cuda, version)
    assert (lacks is None) == enough
    if lacks:
        assert cuda in lacks
        assert version in lacks


def test_capabilities_are_compared_as_numbers() -> None:
    assert gpu.below("9.0", "10.0")
    assert not gpu.below("10.0", "9.0")
    assert not gpu.below("8.0", "8.0")


# Leases --------------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from harness import lease
from harness.gpu import Gpu
gpus = [Gpu(index=i, uuid=u, name="NVIDIA H200", capability="9.0", multiprocessors=132, memory_bytes=None, mig=False,
            ecc=True, parent=u) for i, u in enumerate(sys.argv[2].split(","))]
def say(text): print("said", text, flush=True)
with lease.take(gpus, Path(sys.argv[1]), say) as held:
    print("has", held.gpu.uuid, flush=True)
    sys.stdin.read()
"""


def holder(folder: Path, *gpus: FakeGpu) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), ",".join(fake.uuid for fake in gpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def test_two_processes_never_have_one_gpu_and_a_killed_one_gives_it_up(tmp_path: Path) -> None:
    first = holder(tmp_path, A)
    assert says(first) == f"has {A.uuid}"
    second = holder(tmp_path, A)
    try:
        assert says(second) == f"said waiting for GPU 0 (NVIDIA H200, {A.uuid}), held by process {first.pid}"
        time.sleep(0.5)
        assert second.poll() is None
        first.send_signal(signal.SIGKILL)
        assert says(second) == f"has {A.uuid}"
    finally:
        end(first, second)


def test_two_processes_take_two_gpus_at_once(tmp_path: Path) -> None:
    first, second = holder(tmp_path, A, B), holder(tmp_path, A, B)
    try:
        assert {says(first), says(second)} == {f"has {A.uuid}", f"has {B.uuid}"}
    finally:
        end(first, second)


def test_a_lease_is_free_when_its_block_ends_though_a_child_lingers(tmp_path: Path) -> None:
    with lease.take([physical()], tmp_path, pytest.fail) as held:
        child = subprocess.Popen(["sleep", "60"], pass_fds=(held.descriptor,))
    try:
        with lease.take([physical()], tmp_path, pytest.fail):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_lock_file_is_every_users_and_never_a_link(tmp_path: Path) -> None:
    with lease.take([physical()], tmp_path, pytest.fail):
        (path,) = tmp_path.iterdir()
        assert path.stat().st_mode & 0o777 == 0o666
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    with (
        pytest.raises(BitmatrixError, match="the lock of a GPU can't be opened"),
        lease.take([physical()], tmp_path, pytest.fail),
    ):
        pass
    assert not (tmp_path / "victim").exists()


# A run ---------------------------------------------------------------------------------------------------------------


def on_cuda(project: Project, **mode: Any) -> None:
    """Let the project's candidates run on cuda, in this interpreter."""
    cpu: Any = deepcopy(project.cpu)
    project.matrix["devices"]["cuda"] = {key: value for key, value in cpu.items() if key != "toolchain"}  # type: ignore[index]
    if mode:
        cuda = project.matrix["devices"]["cuda"]  # type: ignore[index]
        cuda["modes"] = {"new": {"stack": "golden", **mode}}
        for candidate in cuda["candidates"]:
            cuda["candidates"][candidate] = {"modes": ["new"], "source": candidate}
        cuda["references"] = [f"{next(iter(cuda['candidates']))}[new]"]
    project.write()


def run(project: Project, variables: dict[str, str], *options: str, command: str = "matrix") -> tuple[int, str]:
    place = ["--root", str(project.root), "--out", str(project.out), "--device", "cuda", "--isolation", "host"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", command, *place, *options],
        env={**variables, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def record(project: Project, cell: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((project.latest() / cell / "record.json").read_text())
    return loaded


TELLS = in_run("print('given', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)")


def test_a_cell_is_given_its_lease_and_the_record_tells_the_gpus_state(tmp_path: Path, double: Path) -> None:
    project = Project(tmp_path, {"tells": TELLS})
    on_cuda(project)
    busy = FakeGpu(uuid="GPU-bbbbbbbb", pids=(4711,), reasons=0x4)
    code, said = run(project, environment(double, [A, busy]), "--gpu", "1")
    assert code == 0, said
    assert f"given {busy.uuid}" in (project.latest() / "tells" / "log.txt").read_text()
    assert "is busy with process 4711: times suffer, bits don't" in said
    made = record(project, "tells")
    assert (made["gpu"]["uuid"], made["gpu"]["driver"]["version"]) == (busy.uuid, "580.95.05")
    assert made["gpu"]["before"]["throttle"] == made["gpu"]["after"]["throttle"] == ["power cap"]
    # Another GPU of the kind is the same experiment; another kind, or driver, isn't.
    assert busy.uuid not in json.dumps(made["identity"])
    assert ", kept" in run(project, environment(double, [A]))[1]
    assert ", kept" not in run(project, environment(double, [B200]))[1]
    assert ", kept" not in run(project, environment(double, [A], driver="580.1"))[1]


def test_a_capture_of_an_unlike_gpu_is_no_part_of_the_table(tmp_path: Path, double: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    on_cuda(project)
    assert run(project, environment(double, [A]))[0] == 0
    path = project.latest() / "good" / "record.json"
    changed = json.loads(path.read_text())
    changed["identity"]["device"]["multiprocessors"] = "148"
    path.unlink()
    path.write_text(json.dumps(changed))
    code, said = run(project, environment(double, [A]), str(project.latest()), command="collect")
    assert code == 2
    assert "its device are not this run's" in said


def test_a_mode_beyond_the_gpus_capability_is_unavailable(tmp_path: Path, double: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    on_cuda(project, capability="10.0")
    code, said = run(project, environment(double, [A]))
    assert code == 1, said
    assert "unavailable" in said
    assert "mode new needs compute capability 10.0, NVIDIA H200 has 9.0" in said
    assert run(project, environment(double, [B200]))[0] == 0


@pytest.mark.parametrize(
    ("seen", "status"),
    [("aaaaaaaa", "done"), ("GPU-aaaaaaaa", "done"), ("bbbbbbbb", "failed"), (None, "done"), (["a"], "done")],
)
def test_a_cell_that_saw_another_gpu_than_its_lease_has_failed(seen: object, status: str) -> None:
    verdict = Verdict(status="done", reason=None, tensors={}, claims={"facts": {"gpu": {"uuid": seen}}})
    judged = on_lease(verdict, Lease(gpu=physical(), descriptor=-1))
    assert judged.status == status
    if status == "failed":
        assert "it ran on the GPU bbbbbbbb, not on the one it was given, GPU 0" in (judged.reason or "")


def moment(line: str) -> bool:
    return line.startswith(("from ", "to "))


def test_stacks_side_by_side_under_j_have_a_gpu_each(tmp_path: Path, double: Path) -> None:
    times = "import time; print('from', time.time(), flush=True); time.sleep(4); print('to', time.time(), flush=True)"
    project = Project(tmp_path, {"one": in_run(times), "two": in_run(times)}, cases=(1,))
    on_cuda(project)
    cuda: Any = project.matrix["devices"]["cuda"]  # type: ignore[index]
    cuda["stacks"]["second"] = cuda["stacks"]["golden"]
    cuda["candidates"]["two"]["stack"] = "second"
    project.write()
    (tmp_path / "noxfile.py").write_text((REPOSITORY / "noxfile.py").read_text())
    place = ["--root", str(tmp_path), "--out", str(project.out), "--device", "cuda", "--isolation", "host"]
    done = subprocess.run(
        [sys.executable, "-m", "nox", "-f", str(tmp_path / "noxfile.py"), "-j", "4", "-s", "matrix", "--", *place],
        env={**environment(double, [A, B]), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    records = [record(project, name) for name in ("one", "two")]
    assert {made["gpu"]["uuid"] for made in records} == {A.uuid, B.uuid}
    spans = [
        dict(line.split() for line in (project.latest() / name / "log.txt").read_text().splitlines() if moment(line))
        for name in ("one", "two")
    ]
    assert max(float(span["from"]) for span in spans) < min(float(span["to"]) for span in spans)


def test_a_stack_newer_than_the_driver_is_unavailable_with_both_versions(tmp_path: Path, double: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    on_cuda(project)
    stacks = project.out / "stacks"
    stacks.mkdir(parents=True)
    found = Environment(
        stack="golden", isolation="venv", python=sys.executable, identity="x", pinned={"nvidia-cuda-runtime": "13.0.96"}
    )
    kept = {"status": "done", "reason": None, "log": None, "environment": asdict(found)}
    (stacks / "cuda-golden-venv.json").write_text(json.dumps(kept))
    code, said = run(project, environment(double, [A], driver="570.86.15"), "--isolation", "venv", command="run")
    assert code == 1, said
    assert "stack golden: CUDA 13.0 needs NVIDIA driver 580 or newer, this host has 570.86.15" in said


def test_the_doctor_names_what_a_gpu_host_lacks(tmp_path: Path, double: Path) -> None:
    project = Project(tmp_path, {"good": GOOD})
    on_cuda(project)
    stopped = FakeGpu(uuid="GPU-1", fabric=1, pids=(4711,), reasons=0x4)
    code, said = run(project, environment(double, [stopped], driver="570.1"), command="doctor")
    assert code == 1
    assert "fail  GPU 0 (NVIDIA H200, GPU-1): its NVSwitch fabric is not started" in said
    assert "busy with process 4711" in said
    assert "clocks are held down: power cap" in said
    assert "CUDA 13.0 needs NVIDIA driver 580 or newer, this host has 570.1" in said
    code, said = run(project, environment(double, [FakeGpu(uuid="GPU-1", fabric=3)]), command="doctor")
    assert code == 0, said
    assert "fail" not in said


@pytest.mark.parametrize(("way", "gib"), [("docker", 20), ("venv", 80), ("host", 5)])
def test_the_doctor_asks_for_room_for_what_is_cached(tmp_path: Path, way: IsolationName, gib: int) -> None:
    workspace = Workspace(out=tmp_path / "out", cache=tmp_path / "cache")
    declared = matrix.load(workspace.matrix, workspace.kernels)
    checks = doctor.examine(workspace, declared, "cuda", way, ())
    cache = next(check for check in checks if check.what == "disk for cache")
    assert f"about {gib} GiB may be needed" in cache.text


# The engine ----------------------------------------------------------------------------------------------------------


def task(folder: Path, image: str, held: Lease | None) -> Task:
    cell = Cell(
        candidate="good", mode=None, stack="golden", source="", required=True, library=False,
        environment={"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, threads=2, activation=None, architectures=None,
        capability=None,
    )  # fmt: skip
    plan = Plan(
        op="scale", device="cuda", cases=(1,), cells=(cell,), references=(), limits=Limits(memory_gib=1, processes=64)
    )
    for name in ("runtime", "inputs", "output"):
        (folder / name).mkdir()
    place = Environment(
        stack="golden", isolation="docker", python="/opt/stack/bin/python", identity=image, image_id=image
    )
    return Task(
        cell=cell, plan=plan, environment=place, library=None, lease=held, runtime=folder / "runtime",
        inputs=folder / "inputs", input_digests={}, op="scale", folder=folder,
    )  # fmt: skip


@pytest.mark.docker
@pytest.mark.parametrize("uuid", ["GPU-aaaaaaaa", "MIG-1234"])
def test_the_engine_is_asked_for_the_leased_gpu_and_nothing_more(
    tmp_path: Path, base_image: BaseImage, uuid: str
) -> None:
    held = Lease(gpu=physical(FakeGpu(uuid=uuid)), descriptor=-1)
    with engine.container(isolation.container_request(task(tmp_path, base_image.name, held))) as made:
        made.reload()
        host, config = made.attrs["HostConfig"], made.attrs["Config"]
    (asked,) = host["DeviceRequests"]
    assert (asked["Driver"], asked["Count"], asked["DeviceIDs"]) == ("", 0, [uuid])
    assert asked["Capabilities"] == [["gpu", "compute", "utility"]]
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["CapDrop"]) == ("none", True, ["ALL"])
    assert (host["Memory"], host["PidsLimit"], host["SecurityOpt"]) == (1 << 30, 64, ["no-new-privileges"])
    assert {mount["Target"]: mount.get("ReadOnly", False) for mount in host["Mounts"]} == {
        "/bitmatrix/runtime": True,
        "/bitmatrix/inputs": True,
        "/bitmatrix/job.json": True,
        "/bitmatrix/output": False,
    }
    assert "CUBLAS_WORKSPACE_CONFIG=:16:8" in config["Env"]
    assert not [item for item in config["Env"] if item.startswith(("CUDA_VISIBLE_DEVICES", "NVIDIA_"))]
    assert config["User"] == f"{os.getuid()}:{os.getgid()}"


@pytest.mark.docker
def test_a_start_without_the_toolkit_is_unavailable_with_the_remedy(tmp_path: Path, base_image: BaseImage) -> None:
    if toolkit.way() is not None:
        pytest.skip("this engine has the toolkit")
    held = Lease(gpu=physical(), descriptor=-1)
    folder = tmp_path / "cell"
    folder.mkdir()
    asked = task(folder, base_image.name, held)
    asked.output.rmdir()
    with pytest.raises(Unavailable, match=r"(?s)could not select device driver.*nvidia-ctk runtime configure"):
        isolation.launch(asked)
    with pytest.raises(BadInput, match=r"(?s)nvidia-container-toolkit.*--isolation venv"):
        toolkit.needed()


# A real GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_nvml_and_torch_describe_the_same_gpu() -> None:
    one = gpu.choose().gpus[0]
    code = (
        "import json, torch; p = torch.cuda.get_device_properties(0); "
        "print(json.dumps([p.name, f'{p.major}.{p.minor}', p.multi_processor_count, str(p.uuid), "
        "torch.cuda.device_count()]))"
    )
    seen = python(code, {**os.environ, "CUDA_VISIBLE_DEVICES": one.uuid})
    assert seen.returncode == 0, seen.stderr
    name, capability, multiprocessors, uuid, count = json.loads(seen.stdout)
    assert (name, capability, multiprocessors, count) == (one.name, one.capability, one.multiprocessors, 1)
    assert gpu.same_device(one, uuid)
    now = asdict(gpu.state(one))
    assert now["sm_max_mhz"] > 0
    assert now["throttle"] is not None


@pytest.mark.gpu
def test_a_cell_on_a_real_gpu_sees_the_leased_one_alone(tmp_path: Path) -> None:
    project = Project(tmp_path, {"torch_sees": "import torch\n" + GOOD + "torch.zeros(1, device='cuda')\n"})
    on_cuda(project)
    cuda: Any = project.matrix["devices"]["cuda"]  # type: ignore[index]
    cuda["threads"], cuda["environment"] = 2, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE"}
    cuda["limits"]["memory_gib"] = 16
    project.write()
    code, said = run(project, dict(os.environ))
    assert code == 0, said
    made = record(project, "torch_sees")
    (leased,) = [one for one in gpu.every() if one.uuid == made["gpu"]["uuid"]]
    seen = made["claims"]["facts"]["gpu"]
    assert gpu.same_device(leased, seen["uuid"])
    assert seen["visible_devices"] == 1


def test_the_projects_matrix_asks_for_capabilities_that_can_be_compared() -> None:
    modes = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())["devices"]["cuda"]["modes"]
    assert any(gpu.below("7.5", mode["capability"]) for mode in modes.values() if "capability" in mode)
