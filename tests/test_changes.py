"""What changed between two reports: every change is named, and the cause that explains the changes comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from test_render import columns, hostile, small, tables

from harness import changes, cli, report
from harness.report import Report
from harness.workspace import REPOSITORY

B200 = REPOSITORY / "baselines" / "b200_timestep_mlp.json"
H200 = REPOSITORY / "baselines" / "h200_timestep_mlp.json"
CPU = REPOSITORY / "docs" / "example" / "cpu_timestep_mlp.json"


def published() -> Report:
    return report.load(B200)


def causes(before: Report, after: Report) -> list[str]:
    return [cause.change.what for cause in changes.between(before, after).causes]


def test_a_report_has_not_changed_from_itself() -> None:
    for path in (B200, H200, CPU):
        found = changes.between(report.load(path), report.load(path))
        assert (found.verdicts, found.agreements, found.causes, found.changed_cells) == ([], [], [], set())
        assert all(not one.changed and one.same for one in found.compared)
        assert all(one.same == one.total for one in found.bits)


def test_the_published_b200_against_the_h200_names_the_gpu_first_and_what_parted() -> None:
    before, after = report.load(B200), report.load(H200)
    found = changes.between(before, after)
    assert [cause.change.what for cause in found.causes][:3] == ["device", "torch", "triton"]
    vllm = next(one for one in found.compared if one.cell == "diffusers[vllm]" and one.reference == "diffusers[plain]")
    assert "out (T = 4)" in vllm.now_equal
    assert {"out (T = 1)", "out (T = 64)"} <= set(vllm.now_unlike)
    pair = next(one for one in found.agreements if one.cells == ("diffusers[plain]", "diffusers[vllm]"))
    assert "out (T = 4)" in pair.gained
    assert "out (T = 1)" in pair.lost
    assert found.verdicts == [], "sglang is TF32 on both"
    lost = {one.cell: one.why for one in found.ended if not one.gained}
    assert lost.keys() == {
        "rl_kernel",
        *(f"diffusers[megatron_{mode}]" for mode in ("te_native", "triton", "triton_ieee")),
    }
    assert "rl_engine is not installed" in lost["rl_kernel"]
    assert found.changed_cells == {f"diffusers[{mode}]" for mode in ("vllm", "sglang", "sglang_ieee")}, "no lost one"
    assert found.causes[0].fit == "can touch 3 of the 3 cells that changed, and 0 that didn't"
    assert "Look first at: device, from NVIDIA B200," in changes.markdown(before, after, ("a", "b"))


def test_a_framework_whose_modes_alone_changed_comes_before_what_touches_every_cell() -> None:
    before, after = published(), published()
    after.environment.libraries["vllm"] = "0.31.0"
    after.environment.python = "3.12.15"
    after.environment.torch = "2.13.1+cu130"
    case = after.results["diffusers[vllm]"].versus["diffusers[plain]"]["1"]
    case.out[0].equal, case.out[0].differ = False, 77
    found = changes.between(before, after)
    assert found.changed_cells == {"diffusers[vllm]"}
    assert [cause.change.what for cause in found.causes] == ["vllm", "torch", "Python"]
    assert found.causes[0].fit == "can touch 1 of the 1 cells that changed, and 0 that didn't"


def test_a_modes_declared_environment_is_a_cause_of_its_own_cells() -> None:
    before, after = published(), published()
    after.environment.mode_environment["vllm"] = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    case = after.results["diffusers[vllm]"].versus["diffusers[plain]"]["1"]
    case.out[0].equal, case.out[0].differ = False, 77
    (cause,) = changes.between(before, after).causes
    assert cause.change.what == "environment of mode vllm"
    assert (cause.change.before, cause.change.after) == (
        "CUBLAS_WORKSPACE_CONFIG=:16:8 CUBLASLT_WORKSPACE_SIZE=1",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8",
    )


def test_bits_that_changed_without_a_recorded_cause_say_so() -> None:
    before, after = report.load(CPU), report.load(CPU)
    assert after.bitmatrix is not None
    after.bitmatrix.digests["golden"]["64"]["out"] = "0" * 64
    found = changes.between(before, after)
    assert found.changed_cells == {"golden"}
    assert next(one for one in found.bits if one.cell == "golden").same == 23
    text = changes.markdown(before, after, ("a", "b"))
    assert "Nothing that both reports have on record changed that these cells use. Look at what isn't" in text


def test_other_inputs_come_before_everything() -> None:
    before, after = report.load(CPU), report.load(CPU)
    assert after.bitmatrix is not None
    after.bitmatrix.inputs["w1"] = "0" * 64
    after.environment.torch = "2.14.0"
    assert after.bitmatrix.digests["golden"]
    for cases in after.bitmatrix.digests.values():
        cases["64"]["out"] = "0" * 64
    assert causes(before, after)[:2] == ["inputs", "torch"]


def test_what_only_one_report_measured_is_no_change_of_a_verdict() -> None:
    found = changes.between(published(), report.load(CPU))
    assert (found.verdicts, found.changed_cells, found.untold) == ([], set(), ["diffusers[plain]"])
    assert found.measured_once == {
        False: [],
        True: ["accuracy", "batch_invariance", "latency", "precision", "repeatability"],
    }
    assert "**No cell can be compared bit for bit.**" in changes.markdown(published(), report.load(CPU), ("a", "b"))
    before, after = report.load(CPU), report.load(CPU)
    assert after.bitmatrix is not None
    assert after.bitmatrix.measures is not None
    taken = after.bitmatrix.measures["diffusers[plain]"].batch_invariance
    assert taken is not None
    assert taken.result is not None
    taken.result.checks.clear()
    assert [turned.cell for turned in changes.between(before, after).verdicts] == ["diffusers[plain]"]


def test_the_kernels_library_touches_the_cells_of_kernels_alone() -> None:
    before, after = report.load(CPU), report.load(CPU)
    assert after.bitmatrix is not None
    assert after.bitmatrix.library is not None
    after.bitmatrix.library["sha256"] = "0" * 64
    after.bitmatrix.digests["det_linear"]["64"]["out"] = "0" * 64
    (cause,) = changes.between(before, after).causes
    assert cause.change.what == "kernel library"
    assert cause.change.touches == {"det_linear", "det_linear_portable", "golden"}


@pytest.mark.parametrize(
    ("package", "computes"),
    [("numpy", True), ("scipy", True), ("sgl-kernel", True), ("nvidia-cublas-cu12", True), ("scipy-openblas64", True),
     ("torchvision", False), ("numpyro", False), ("cuda-bindings", False), ("colorama", False)],
)  # fmt: skip
def test_a_package_that_only_sounds_like_a_library_is_no_cause(package: str, computes: bool) -> None:
    before, after = report.load(CPU), report.load(CPU)
    assert after.bitmatrix is not None
    after.bitmatrix.stacks["torch"].distributions[package] = "9.9.9"
    found = changes.between(before, after)
    assert [cause.change.what for cause in found.causes] == ([f"{package} in stack torch"] if computes else [])
    assert found.more == (not computes)


def test_a_package_of_a_stack_touches_the_stacks_cells() -> None:
    before, after = report.load(CPU), report.load(CPU)
    assert after.bitmatrix is not None
    after.bitmatrix.stacks["golden"].distributions["numpy"] = "9.9.9"
    after.bitmatrix.stacks["golden"].distributions["colorama"] = "9.9.9"
    after.bitmatrix.digests["golden"]["64"]["out"] = "0" * 64
    found = changes.between(before, after)
    assert [cause.change.what for cause in found.causes] == ["numpy in stack golden"]
    assert found.more == 1


@given(name=hostile, reason=hostile, value=hostile)
@settings(max_examples=60)
def test_no_name_or_reason_breaks_its_tables(name: str, reason: str, value: str) -> None:
    assume(name not in small().bitmatrix.cells or name == "other")  # type: ignore[union-attr]
    text = changes.markdown(small(), small(name=name, reason=reason, value=value), (name, reason))
    for table in tables(text):
        assert len({columns(line) for line in table}) == 1
    assert all(character == "\n" or character.isprintable() for character in text)


@pytest.mark.parametrize(("before", "after"), [(B200, H200), (B200, CPU), (H200, CPU), (CPU, B200)])
def test_the_command_prints_what_changed_between_any_two(
    before: Path, after: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", str(before), str(after)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# What changed: ")
    assert "| device |" in text


def test_the_command_refuses_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.json").write_text('{"format": 3')
    assert cli.main(["compare", str(B200), str(tmp_path / "no.json")]) == 2
    assert "no.json" in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path / "none.json"), str(B200)]) == 2
