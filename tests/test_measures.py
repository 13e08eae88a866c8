"""Each measure against candidates of which the right answer is known, in the cell's own process."""

from __future__ import annotations

import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import yaml
from cell import jobs

from harness import cli, report
from harness.cell.measures import accuracy, invariance
from harness.cell.op import load_module
from harness.workspace import REPOSITORY

ROWWISE = """
import numpy as np

def load(context):
    return lambda given: {
        "out": np.stack([rounded(row) @ rounded(given["w"]).T for row in given["x"]]),
        "grads.x": np.stack([rounded(row) @ rounded(given["w"]) for row in given["upstream"]]),
        "grads.w": rounded(given["upstream"]).T @ rounded(given["x"]),
    }

def rounded(values):
    return values
"""
"""LINEAR row by row: batch-invariant by construction; a test can put another `rounded` after it."""

EXACT = """
import numpy as np

def exact(inputs):
    x, w, g = (np.asarray(inputs[name], np.float64) for name in ("x", "w", "upstream"))
    return {"out": x @ w.T, "grads.x": g @ w, "grads.w": g.T @ x}
"""

PROBE = """
import numpy as np

def probe(case):
    numbers = (1 + np.exp2(-np.arange(24.0))).astype(np.float32)
    rows = 24
    x, w, g = np.zeros((rows, 3), "f4"), np.zeros((2, 3), "f4"), np.zeros((rows, 2), "f4")
    x[:, 0], w[0, 0] = numbers, 1
    return {"x": x, "w": w, "upstream": g}, {"forward operand": ("out", (slice(0, 24), 0), numbers)}
"""

QUICK = {"batch_invariance": {"quick": True}}


def measured(root: Path, source: str, asked: dict[str, Any], *, files: dict[str, str] | None = None, **job: Any) -> Any:
    """The claims of a done cell that took the measures."""
    staged = jobs.stage(root, dedent(source), cases=(5, 1)) | {"measures": asked} | job
    for name, text in (files or {}).items():
        (Path(staged["op_folder"]) / name).write_text(text)
    ending = jobs.run(root, staged)
    assert ending.code == 0, ending.stderr
    assert not (ending.output / "measuring").exists()
    return ending.claims["measures"]


def result(taken: dict[str, Any], name: str) -> dict[str, Any]:
    assert taken[name]["status"] == "done", taken[name]
    found: dict[str, Any] = taken[name]["result"]
    return found


def differ(found: dict[str, Any]) -> dict[str, int]:
    return {
        f"{check} {tensor}": count["differ"] for check, of in found["checks"].items() for tensor, count in of.items()
    }


def test_a_candidate_that_works_row_by_row_is_batch_invariant(tmp_path: Path) -> None:
    found = result(measured(tmp_path, ROWWISE, QUICK), "batch_invariance")
    assert found["complete"]
    assert set(found["checks"]) == {"alone", "sub_batches", "reversed", "probes"}
    assert found["checks"]["alone"] == {name: {"compared": 64, "differ": 0} for name in ("out", "grads.x")}
    assert not any(differ(found).values())
    assert found["first"] == []


def test_a_candidate_that_depends_on_its_batch_is_caught_with_its_first_failures(tmp_path: Path) -> None:
    batch_dependent = (
        ROWWISE
        + """

inner = load
def load(context):
    run = inner(context)
    def dependent(given):
        results = run(given)
        if len(given["x"]) >= 33:
            results["out"] = np.nextafter(results["out"], np.float32(9))
        return results
    return dependent
"""
    )
    found = result(measured(tmp_path, batch_dependent, QUICK), "batch_invariance")
    counts = differ(found)
    assert counts["alone out"] == 64
    assert counts["alone grads.x"] == counts["sub_batches grads.x"] == 0
    # Halves of 32 don't reach the threshold; the full batch does.
    assert counts["sub_batches out"] > 0
    assert counts["reversed out"] == 0, "reversed is as large as its batch"
    first = found["first"][0]
    assert (first["check"], first["tensor"], first["batch"], first["row"]) == ("alone", "out", 64, 0)
    assert first["expected"] != first["found"]
    assert len(first["expected"]) == 8


def test_a_row_that_depends_on_its_place_is_caught_by_reversal_and_probes(tmp_path: Path) -> None:
    placed = (
        ROWWISE
        + """
inner = load
def load(context):
    run = inner(context)
    def dependent(given):
        results = run(given)
        results["grads.x"][1::2] *= np.float32(1.0000001)
        return results
    return dependent
"""
    )
    counts = differ(result(measured(tmp_path, placed, QUICK), "batch_invariance"))
    assert counts["reversed grads.x"] == 64
    assert counts["probes grads.x"] > 0
    assert counts["probes out"] == counts["reversed out"] == 0


def test_the_strict_check_runs_the_published_batches(tmp_path: Path) -> None:
    found = result(measured(tmp_path, ROWWISE, {"batch_invariance": {"quick": False}}), "batch_invariance")
    full = 64 + 257 + 2048
    assert found["checks"]["alone"]["out"] == {"compared": full, "differ": 0}
    assert found["checks"]["reversed"]["grads.x"] == {"compared": full, "differ": 0}
    assert found["checks"]["sub_batches"]["out"] == {"compared": 2 * full, "differ": 0}, "in halves, and unevenly"
    # Of five distinct rows three are probes: in front, in the middle and at the back, each in each place.
    assert found["checks"]["probes"]["out"]["compared"] == 3 * (1 + 2 + 31 * 3)
    assert found["complete"]


def test_probes_take_every_awkward_size() -> None:
    around = [power + step for power in (16, 32, 64, 128, 256, 512, 1024, 2048) for step in (-1, 0, 1)]
    assert invariance._sizes(max(invariance.STRICT)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, *around]
    assert invariance._sizes(max(invariance.QUICK)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, *around[:9]]


def test_what_time_leaves_of_a_measure_says_that_it_is_not_whole(tmp_path: Path) -> None:
    asked = {"batch_invariance": {"quick": False}, "repeatability": {"calls": 3}}
    taken = measured(tmp_path, ROWWISE, asked, measure_seconds=0)
    assert not result(taken, "batch_invariance")["complete"]
    assert result(taken, "repeatability") == {"calls": 0, "differ": {}, "complete": False}


def test_a_call_that_remembers_the_last_is_not_repeatable(tmp_path: Path) -> None:
    stateful = (
        ROWWISE
        + """
calls = []
def rounded(values):
    calls.append(1)
    return values * np.float32(1 + (len(calls) > 30) * 1e-6)
"""
    )
    found = result(measured(tmp_path, stateful, {"repeatability": {"calls": 2}}), "repeatability")
    assert found["differ"]["5"]["out"] >= 1
    (tmp_path / "again").mkdir()
    found = result(measured(tmp_path / "again", ROWWISE, {"repeatability": {"calls": 2}}), "repeatability")
    assert found == {"calls": 2, "differ": {}, "complete": True}


@pytest.mark.parametrize(("cut", "bits"), [("values", 24), ("truncated(values, 13)", 11), ("truncated(values, 16)", 8)])
def test_the_probe_counts_the_bits_that_a_path_keeps(tmp_path: Path, cut: str, bits: int) -> None:
    source = (
        ROWWISE
        + f"""
def truncated(values, lost):
    return (np.array(values).view("u4") & np.uint32(0xffffffff << lost & 0xffffffff)).view("f4")

def rounded(values):
    return {cut}
"""
    )
    taken = measured(
        tmp_path, source, {"precision": {}, "accuracy": {}}, files={"precision.py": PROBE, "exact.py": EXACT}
    )
    assert result(taken, "precision")["bits"] == {case: {"forward operand": bits} for case in ("5", "1")}
    error = result(taken, "accuracy")["cases"]["5"]["out"]
    relative = error["rms_abs"] / error["scale"]
    assert 2.0 ** (-bits - 4) < relative < 2.0 ** (-bits + 2)


def test_rounding_to_nearest_counts_like_cutting(tmp_path: Path) -> None:
    nearest = (
        ROWWISE
        + """
def rounded(values):
    return (np.array(values).view("u4") + np.uint32(0x0fff) & np.uint32(0xffffe000)).view("f4")
"""
    )
    taken = measured(tmp_path, nearest, {"precision": {}}, files={"precision.py": PROBE})
    assert set(result(taken, "precision")["bits"]["5"].values()) == {11}


def test_the_committed_probe_reads_every_path_of_the_operator() -> None:
    folder = REPOSITORY / "kernels" / "timestep_mlp"
    probe = load_module(folder / "precision.py", "probe_under_test").probe
    exact = load_module(folder / "exact.py", "exact_under_test").exact
    for case in (1, 5):
        inputs, readings = probe(case)
        truth = {name: value.astype(np.float32) for name, value in exact(inputs).items()}
        cut = exact({name: _tf32(value) for name, value in inputs.items()})
        for path, (name, index, expected) in readings.items():
            assert np.array_equal(truth[name][index], expected), path
            lost = np.asarray(cut[name][index], np.float32) != expected
            # A unit's own value comes from b1, which no product rounds; here it was cut, too.
            assert lost.tolist() == [k > 10 for k in range(24)] or path == "forward sum", path


def _tf32(values: Any) -> Any:
    return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_errors_are_those_of_the_definition() -> None:
    truth = np.array([1.0, -2.0, 1e-3, 3.0])
    found = np.array([1.0 + 2**-23, -2.0, 1e-3, np.inf], np.float32)
    error = accuracy.errors(found, truth, "F32")
    assert error["max_abs"] == 2**-23
    assert error["max_ulp"] == 1
    assert error["not_finite"] == 1
    assert error["scale"] == pytest.approx((5 + 1e-6) ** 0.5 / 3**0.5)
    assert error["rms_abs"] == pytest.approx(2**-23 / 3**0.5, rel=1e-3)
    half = accuracy.errors(np.array([0x3F81], np.uint16), np.array([1.0]), "BF16")
    assert half["max_ulp"] == 1


def test_latency_counts_its_calls_and_says_what_it_timed(tmp_path: Path) -> None:
    asked = {"latency": {"repeats": 7, "warmup": 1, "seconds": 5}}
    found = result(measured(tmp_path, ROWWISE, asked), "latency")
    assert found["clock"] == "monotonic clock"
    timing = found["cases"]["5"]["whole"]
    assert timing["repeats"] == 7
    assert 0 < timing["min_us"] <= timing["median_us"] <= timing["max_us"]
    assert found["cases"]["5"]["forward"] is None, "a mere function has no forward of its own"


def test_steps_are_a_run_whose_forward_is_timed_alone(tmp_path: Path) -> None:
    parts = (
        ROWWISE
        + """
from harness.cell.op import Steps
inner = load
def load(context):
    run = inner(context)
    return Steps(place=dict, forward=lambda given: {"out": given["x"]}, whole=run)
"""
    )
    asked = {"latency": {"repeats": 3, "warmup": 1, "seconds": 5}, **QUICK}
    taken = measured(tmp_path, parts, asked)
    assert result(taken, "latency")["cases"]["1"]["forward"]["repeats"] == 3
    assert not any(differ(result(taken, "batch_invariance")).values())


def test_what_a_measure_cannot_do_says_why_and_takes_nothing_with_it(tmp_path: Path) -> None:
    breaks = (
        ROWWISE
        + """
inner = load
def load(context):
    run, seen = inner(context), []
    def once(given):
        seen.append(1)
        if len(seen) > 2:
            raise SystemExit("no more | <b>")
        return run(given)
    return once
"""
    )
    taken = measured(tmp_path, breaks, {**QUICK, "accuracy": {}, "precision": {}, "repeatability": {"calls": 1}})
    assert taken["accuracy"]["status"] == taken["precision"]["status"] == "unavailable"
    assert "no exact.py" in taken["accuracy"]["reason"]
    assert taken["batch_invariance"]["status"] == "failed"
    assert "no more | <b>" in taken["batch_invariance"]["reason"]


# A whole run over candidates of which the fault is known --------------------------------------------------------------

FAULTY = """
from pathlib import Path
import numpy as np
from harness.cell.op import load_module

exact = load_module(Path(__file__).parents[1] / "exact.py", "bitmatrix_exact_of_" + Path(__file__).stem).exact

def load(context):
    def whole(inputs):
        results = {name: np.ascontiguousarray(value, "f4") for name, value in exact(given(inputs)).items()}
        return left(results, len(inputs["x"]))
    return whole

def given(inputs):
    return inputs

def left(results, rows):
    return results
"""
CUT = """
def given(inputs):
    return {name: (np.array(value).view("u4") & np.uint32(0xffffe000)).view("f4") for name, value in inputs.items()}
"""
TOGETHER = """
def left(results, rows):
    return {**results, "out": np.nextafter(results["out"], np.float32(9)) if rows > 1 else results["out"]}
"""


@pytest.mark.docker
def test_every_fault_that_is_known_is_the_verdict_of_its_cell(tmp_path: Path) -> None:
    for name in ("kernels", "images"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    candidates = tmp_path / "kernels" / "timestep_mlp" / "candidates"
    faults = {"sound": "", "cut": CUT, "together": TOGETHER}
    for name, fault in faults.items():
        (candidates / f"{name}.py").write_text(FAULTY + fault)
    matrix = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
    cpu = matrix["devices"]["cpu"]
    matrix["devices"], matrix["cases"] = {"cpu": cpu}, [1, 4]
    matrix["report"] = {"kind": "test", "rfc": "none", "libraries": {}}
    for name in ("latency", "repeatability"):
        del cpu["measures"][name]
    # A function that changes nothing: what vllm's was on SM86.
    asleep = {"stack": "torch", "activation": {"function": "torch.utils.data:get_worker_info"}}
    cpu["modes"] = {"plain": {"stack": "torch"}, "asleep": asleep}
    diffusers = {"modes": ["plain", "asleep"], "source": "diffusers"}
    cpu["candidates"] = {"diffusers": diffusers, **{name: {"stack": "golden", "source": name} for name in faults}}
    cpu["references"] = ["diffusers[plain]"]
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(matrix))
    options = ["--root", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu", "--isolation", "docker"]
    assert cli.main(["matrix", *options]) == 0
    made = report.load(tmp_path / "out" / "latest" / "report.json")
    assert made.bitmatrix is not None
    assert made.bitmatrix.verdicts is not None
    kinds = {name: one.kinds for name, one in made.bitmatrix.verdicts.items()}
    assert kinds["diffusers[asleep]"][0] == "inert"
    assert "identical" in kinds["diffusers[asleep]"]
    assert kinds["sound"] == ["other_order"]
    assert kinds["cut"] == ["reduced_precision"]
    assert "(TF32-like): it keeps 11 of 24" in made.bitmatrix.verdicts["cut"].sentence
    # A unit in the last place added to every number is no short mantissa.
    assert "The probe can't tell: " in made.bitmatrix.verdicts["together"].evidence[0]
    assert kinds["together"] == ["not_batch_invariant", "other_order"]
    assert [found for found in made.bitmatrix.findings if getattr(found, "severity", "") == "error"] == []
    text = (tmp_path / "out" / "latest" / "report.md").read_text()
    # The inert cell isn't counted.
    assert "**0 of 3 return the bits of `diffusers[plain]` in every tensor and case.**" in text
    assert "| inert | `diffusers[asleep]` |" in text
