"""GPUs: facts from a management library of known answers, leases of real processes, and what Docker is asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import device, engine, environment, gpu, isolation, run
from harness.base import BaseImage
from harness.capture import Verdict
from harness.engine import Request
from harness.errors import BadInput
from harness.gpu import Gpu
from harness.matrix import Limits
from harness.workspace import REPOSITORY

H200 = "GPU-aaaa0000,NVIDIA H200,9,0,16896,0,1,0"
H200_TOO = "GPU-aaaa0001,NVIDIA H200,9,0,16896,0,1,4711"
T4 = "GPU-bbbb0000,Tesla T4,7,5,2560,-1,-1,0"

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).parent / "native" / "nvml.c"
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run(
        [*compiler, "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", "-o", str(folder / "libnvidia-ml.so.1"), str(source)],
        check=True,
        env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder), "ZIG_GLOBAL_CACHE_DIR": str(folder)},
    )
    return folder


@pytest.fixture
def ask(library: Path, tmp_path: Path) -> Ask:
    """Run Python, or the command line, on a host with these GPUs."""

    def answer(*command: str, gpus: str | None = H200, driver: str = "580.95", cuda: str = "13000", **more: str) -> Any:
        host = {"LD_LIBRARY_PATH": str(library), "NVML_DRIVER": driver, "NVML_CUDA": cuda, **more}
        if gpus is not None:
            host["NVML_GPUS"] = gpus
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            env={**kept, **host},
            check=False,
        )

    return answer


def facts(ask: Ask, expression: str, **host: str | None) -> Any:
    code = f"import json\nfrom dataclasses import asdict\nfrom harness import gpu\nprint(json.dumps({expression}))"
    answer = ask("-c", code, **host)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def one(**changes: Any) -> Gpu:
    fields: dict[str, Any] = {"index": 0, "uuid": "GPU-test-0", "name": "NVIDIA H200", "capability": "9.0", "cores": 1}
    fields |= {"driver": "580.95", "cuda": "13.0", "mig": False, "ecc": True}
    return Gpu(**{**fields, **changes})


# Facts


def test_a_gpu_is_described_by_the_driver(ask: Ask) -> None:
    (found,) = facts(ask, "[asdict(one) for one in gpu.found()]")
    assert found == {
        "index": 0,
        "uuid": "GPU-aaaa0000",
        "name": "NVIDIA H200",
        "capability": "9.0",
        "cores": 16896,
        "driver": "580.95",
        "cuda": "13.0",
        "mig": False,
        "ecc": True,
    }


def test_what_a_gpu_does_not_tell_is_null(ask: Ask) -> None:
    (found,) = facts(ask, "[asdict(one) for one in gpu.found()]", gpus=T4)
    assert (found["mig"], found["ecc"]) == (None, None)


def test_instances_stand_for_a_gpu_that_is_divided(ask: Ask) -> None:
    found = facts(ask, "[one.uuid for one in gpu.found()]", gpus="GPU-cccc0000,NVIDIA B200,10,0,18944,1,1,0")
    assert found == ["MIG-0-GPU-cccc0000", "MIG-1-GPU-cccc0000"]


def test_the_state_names_clocks_and_what_holds_them_down(ask: Ask) -> None:
    state = facts(ask, "gpu.state('GPU-aaaa0000')")
    assert state["clocks_mhz"] == {"sm": 2000, "memory": 2000}
    assert state["held_down_by"] == ["power cap", "thermal slowdown (hardware)"]
    assert (state["celsius"], state["watts"]) == (41, 123.5)


def test_a_reason_without_a_name_keeps_its_number() -> None:
    assert gpu.reasons(1 << 20 | 1) == ["idle", "0x100000"]


def test_a_process_on_the_gpu_is_named(ask: Ask) -> None:
    assert facts(ask, "gpu.processes('GPU-aaaa0001')", gpus=H200_TOO) == [4711]
    assert facts(ask, "gpu.processes('GPU-aaaa0000')") == []


def test_of_unlike_gpus_the_larger_group_is_taken_and_the_rest_named(ask: Ask) -> None:
    taken, left = facts(
        ask, "[[one.uuid for one in part] for part in gpu.chosen()]", gpus=";".join([T4, H200, H200_TOO])
    )
    assert taken == ["GPU-aaaa0000", "GPU-aaaa0001"]
    assert left == ["GPU-bbbb0000"]


@pytest.mark.parametrize("visible", ["2", "GPU-aaaa0001", "GPU-aaaa0001,"])
def test_visible_devices_restrict_what_is_taken(ask: Ask, visible: str) -> None:
    taken = facts(
        ask,
        "[one.uuid for one in gpu.chosen()[0]]",
        gpus=";".join([T4, H200, H200_TOO]),
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert taken == ["GPU-aaaa0001"]


def plan(ask: Ask, *options: str, **host: str | None) -> subprocess.CompletedProcess[str]:
    return ask("-m", "harness", "plan", "--device", "cuda", "--isolation", "host", *options, **host)


def test_the_plan_names_the_gpus_and_those_left_out(ask: Ask) -> None:
    answer = plan(ask, gpus=f"{H200};{T4}")
    assert answer.returncode == 0, answer.stderr
    assert "GPU 0: NVIDIA H200, GPU-aaaa0000, driver 580.95" in answer.stdout
    assert "GPU 1: Tesla T4, GPU-bbbb0000, is left out" in answer.stdout


@pytest.mark.parametrize(
    ("options", "host", "words"),
    [
        ([], {"gpus": None}, ["Driver Not Loaded", "--device cpu"]),
        ([], {"gpus": ""}, ["finds no GPU"]),
        (["--gpu", "7"], {}, ["no GPU 7 here", "GPU-aaaa0000"]),
        (["--gpu", "0", "--gpu", "1"], {"gpus": f"{H200};{T4}"}, ["unlike GPUs", "Tesla T4"]),
    ],
)
def test_a_gpu_that_cannot_be_had_is_bad_input_in_words(
    ask: Ask, options: list[str], host: dict[str, str | None], words: list[str]
) -> None:
    answer = plan(ask, *options, **host)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    for word in words:
        assert word in answer.stderr


def test_a_gpu_chosen_for_a_run_on_the_cpu_is_bad_input(ask: Ask) -> None:
    answer = ask("-m", "harness", "plan", "--device", "cpu", "--gpu", "0")
    assert answer.returncode == 2
    assert "--device cuda" in answer.stderr


def test_captures_of_unlike_gpus_have_unlike_devices() -> None:
    described = [device.describe("cuda", [one(**change)]) for change in ({}, {"uuid": "GPU-other"}, {"index": 3})]
    assert len(set(described)) == 1
    for change in ({"cores": 2}, {"driver": "575"}, {"mig": True}, {"ecc": False}, {"capability": "10.0"}):
        assert device.describe("cuda", [one(**change)]) != described[0]


# The driver against the stack


@pytest.mark.parametrize(
    ("pinned", "cuda"),
    [
        ({"nvidia-cuda-runtime": "13.0.96"}, "13.0"),
        ({"nvidia-cuda-runtime-cu12": "12.8.90", "torch": "2.9.0"}, "12.8"),
        ({"torch": "2.13.0+cu130"}, "13.0"),
        ({"torch": "2.13.0+cpu"}, None),
        ({}, None),
    ],
)
def test_a_lock_says_which_cuda_it_is_built_for(pinned: dict[str, str], cuda: str | None) -> None:
    assert environment.cuda_of(pinned) == cuda


def test_a_driver_of_an_older_cuda_is_too_old_with_the_remedy() -> None:
    reason = gpu.too_old(one(driver="550.54", cuda="12.4"), "13.0")
    assert reason is not None
    for word in ("13.0", "550.54", "12.4", "580"):
        assert word in reason
    assert gpu.too_old(one(cuda="13.0"), "13.2") is None
    assert gpu.too_old(one(cuda="13.0"), "12.8") is None


# Leases


LEASE = """
import sys, time
from harness import gpu
from tests.test_gpu import one
with gpu.lease([one(uuid=name) for name in sys.argv[1].split(",")], lambda text: print(text, flush=True)) as leased:
    print("leased", leased.uuid, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def holders() -> Iterator[Callable[[str, float], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(uuids: str, seconds: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", LEASE, uuids, str(seconds)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def names() -> Iterator[tuple[str, str]]:
    stamp = f"{os.getpid()}-{time.monotonic_ns()}"
    yield f"GPU-test-{stamp}-a", f"GPU-test-{stamp}-b"
    for path in gpu.lock_folder().glob(f"bitmatrix-GPU-test-{stamp}-*.lock"):
        path.unlink()


def test_two_processes_never_hold_one_gpu(
    holders: Callable[[str, float], subprocess.Popen[str]], names: tuple[str, str]
) -> None:
    first = holders(names[0], 60)
    assert line(first) == f"leased {names[0]}"
    second = holders(names[0], 0)
    assert line(second).startswith("waiting for a GPU")
    os.kill(first.pid, signal.SIGKILL)  # a lease ends with its process, however that ends
    assert line(second) == f"leased {names[0]}"


def test_parallel_processes_spread_over_the_gpus(
    holders: Callable[[str, float], subprocess.Popen[str]], names: tuple[str, str]
) -> None:
    leased = {line(holders(",".join(names), 60)) for _ in names}
    assert leased == {f"leased {name}" for name in names}


def test_a_result_from_another_gpu_than_the_leased_is_failed() -> None:
    def judged(uuid: str | None, leased: Gpu | None) -> Verdict:
        claims = {"facts": {"gpu": {"uuid": uuid}}}
        return run._on_leased(Verdict(status="done", reason=None, tensors={}, claims=claims), leased)

    assert judged("test-0", one()).status == "done"  # torch leaves the prefix out
    assert judged(None, one()).status == "done"
    assert judged("else", None).status == "done"
    assert judged("else", one(mig=True)).status == "done"
    refused = judged("else", one())
    assert refused.status == "failed"
    assert "GPU-test-0 was leased" in str(refused.reason)


# What Docker is asked for


@pytest.mark.docker
def test_a_created_container_asks_for_the_leased_gpu_and_keeps_every_restriction(
    base_image: BaseImage, tmp_path: Path
) -> None:
    request = Request(
        image=base_image.name,
        command=["/bin/true"],
        purpose="test",
        environment={"TRITON_F32_DEFAULT": "ieee"},
        mounts=(engine.Mount(tmp_path, "/bitmatrix/inputs"),),
        options={**isolation._restrictions(Limits(memory_gib=3, processes=99)), **isolation._devices(one())},
    )
    with engine.container(request) as made:
        attributes = engine.client().api.inspect_container(str(made.id))
    host = attributes["HostConfig"]
    (asked,) = host["DeviceRequests"]
    assert (asked["Count"], asked["DeviceIDs"]) == (0, ["GPU-test-0"])
    assert asked["Capabilities"] == [["gpu", "compute", "utility"]]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["Memory"], host["PidsLimit"]) == (3 << 30, 99)
    assert "exec" in host["Tmpfs"]["/tmp"]
    (mount,) = host["Mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == (str(tmp_path), "/bitmatrix/inputs", True)
    assert "TRITON_F32_DEFAULT=ieee" in attributes["Config"]["Env"]
    assert attributes["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"


def test_a_run_on_the_cpu_asks_for_no_gpu() -> None:
    assert isolation._devices(None) == {}


@pytest.mark.parametrize(
    ("info", "support"),
    [
        ({"Runtimes": {"nvidia": {}, "runc": {}}}, "NVIDIA runtime"),
        ({"Runtimes": {"runc": {}}, "CDISpecDirs": ["{folder}"]}, "CDI"),
        ({"Runtimes": {"runc": {}}, "CDISpecDirs": ["{folder}/absent"]}, None),
        ({"Runtimes": {"runc": {}}}, None),
    ],
)
def test_an_engine_without_the_toolkit_is_bad_input_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, info: dict[str, Any], support: str | None
) -> None:
    (tmp_path / "nvidia.yaml").touch()
    answer = json.loads(json.dumps(info).replace("{folder}", str(tmp_path)))
    monkeypatch.setattr(engine, "client", lambda: SimpleNamespace(info=lambda: answer))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert engine.gpu_support() == support
    if support is None:
        with pytest.raises(BadInput, match=r"nvidia-container-toolkit.*--isolation venv"):
            engine.gpu_support_needed()


# The doctor


def test_the_doctor_names_a_missing_driver_and_fails(ask: Ask) -> None:
    answer = ask("-m", "harness", "doctor", "--device", "cuda", gpus=None)
    assert answer.returncode == 1
    assert "fail  driver: no NVIDIA driver answers" in answer.stdout
    assert "580 or newer" in answer.stdout


def test_the_doctor_names_each_gpu_and_what_keeps_it_from_its_speed(ask: Ask) -> None:
    answer = ask("-m", "harness", "doctor", "--device", "cuda", gpus=f"{H200};{H200_TOO};{T4}")
    assert "ok    driver: 580.95, runs CUDA up to 13.0" in answer.stdout
    assert "ok    GPU 0: NVIDIA H200" in answer.stdout
    assert "warn  GPU 1: busy with process 4711" in answer.stdout
    assert "warn  GPU 0: its clocks are held down: power cap" in answer.stdout
    assert "warn  GPU 2: Tesla T4 is left out" in answer.stdout


def test_the_doctor_passes_a_host_that_runs_the_cpu_matrix(ask: Ask) -> None:
    answer = ask("-m", "harness", "doctor", "--device", "cpu")
    assert answer.returncode == 0, answer.stdout
    assert "driver" not in answer.stdout


# On a real GPU


@pytest.mark.gpu
def test_the_driver_and_torch_describe_the_same_gpu() -> None:
    torch = pytest.importorskip("torch")
    found = {one.uuid.removeprefix("GPU-"): one for one in gpu.found()}
    seen = torch.cuda.get_device_properties(0)
    described = found[str(seen.uuid)]
    assert described.name == seen.name
    assert described.capability == f"{seen.major}.{seen.minor}"
    assert described.cores == seen.multi_processor_count * 128


@pytest.mark.gpu
def test_a_cell_runs_on_the_gpu_that_it_leased(tmp_path: Path) -> None:
    command = ["matrix", "--device", "cuda", "--isolation", "host", "--mode", "plain", "--case", "4"]
    ended = subprocess.run(
        [sys.executable, "-m", "harness", *command, "--out", str(tmp_path / "out")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    record = json.loads((tmp_path / "out" / "latest" / "diffusers-plain" / "record.json").read_text())
    assert record["status"] == "done", ended.stderr
    assert record["gpu"]["uuid"].removeprefix("GPU-") == record["claims"]["facts"]["gpu"]["uuid"]
    assert record["gpu"]["before"]["clocks_mhz"]["sm"] > 0
    assert record["claims"]["facts"]["gpu"]["visible_devices"] == 1
