"""The table is good to read, and whatever a name or reason holds, it keeps its columns."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness import render, report
from harness.measure import Measures
from harness.report import (
    Case,
    CellDetails,
    CellResult,
    Comparison,
    Details,
    Environment,
    Finding,
    PairDetail,
    Report,
    StackDetails,
)
from harness.workspace import REPOSITORY

GOLDEN = Path(__file__).parent / "golden"
EQUAL = Comparison(equal=True, differ=0, numel=8, max_abs=0.0)
UNLIKE = Comparison(equal=False, differ=10_099, numel=10_752, max_abs=1.2069940567016602e-06)
NONE = Comparison(equal=False, differ=8, numel=8, max_abs=None)


def held(name: str, text: str) -> None:
    """Hold a text against its golden file; BITMATRIX_GOLDEN=write writes it instead."""
    path = GOLDEN / name
    if os.environ.get("BITMATRIX_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "look at the change; BITMATRIX_GOLDEN=write keeps it"


def small(*, name: str = "other", reason: str = "it is so", value: str = "1", narrowed: tuple[str, ...] = ()) -> Report:
    """A report with every status, a reference that is missing, and an equal, a differing and a non-finite tensor."""

    def case(out: Comparison) -> dict[str, Case]:
        return {"16": Case(out=[out], grads={"x": EQUAL}), "4": Case(out=[EQUAL], grads={"x": NONE})}

    def cell(status: str, **more: object) -> CellDetails:
        fields: dict[str, object] = {
            "status": status,
            "reason": None if status == "done" else reason,
            "log": None,
            "candidate": "c",
        }
        fields |= {"mode": None, "stack": "torch", "required": True, "seconds": 1.25, "key": None, **more}
        return CellDetails.model_validate(fields)

    digests = {
        "plain": {"4": {"out": "a", "grads.x": "b"}, "16": {"out": "d", "grads.x": "e"}},
        name: {"4": {"out": "a", "grads.x": "c"}, "16": {"out": "f", "grads.x": "e"}},
    }
    absent = dict.fromkeys(
        ("base", "image", "image_id", "lock", "lock_sha256", "python", "torch", "cuda", "cpu", "gpu", "driver")
    )
    statuses = ("unavailable", "failed", "timed_out", "crashed", "not_run")
    cells = {"plain": cell("done"), name: cell("done", mode="fast", note=reason, overrides=["aten::mm (CPU)"])}
    cells |= {f"{status}_one": cell(status, log=f"{status}/log.txt", seconds=None) for status in statuses}
    return Report(
        kind="k",
        rfc="r",
        op="an_op",
        rl_kernel_commit=None,
        tracked_tree_dirty=None,
        environment=Environment(
            gpu=None, capability=None, torch="2.13.0+cpu", cuda=None, python="3.11.2", tf32=False,
            libraries={"torch": "2.13.0"}, mode_environment={"fast": {"A": value}},
        ),
        cases=[4, 16],
        results={
            name: CellResult.model_validate({"source": "s", "vs plain": case(UNLIKE)}),
            "plain": CellResult(source="s"),
        },
        bitmatrix=Details(
            run="20261201T000000Z-cpu", created="2026-12-01T00:00:00+00:00", device="cpu", device_model="A CPU",
            isolation="docker", narrowed=list(narrowed), outputs=["out"], gradients=["x"],
            references=["plain", "failed_one"], cells=cells,
            stacks={
                "torch": StackDetails(
                    status="done", reason=None, base="b" * 64, image="bitmatrix/cpu-torch:1",
                    image_id=f"sha256:{'1' * 64}",
                    lock="images/locks/x", lock_sha256="2" * 64, python="3.11.2", torch="2.13.0+cpu", cuda=None,
                    cpu="A CPU", gpu=None, driver=None, distributions={"torch": "2.13.0+cpu"},
                ),
                f"{name}_stack": StackDetails(status="unavailable", reason=reason, distributions={}, **absent),
            },
            classes=report.classes(digests), digests=digests,
            inputs={"x": {"4": "5" * 64, "16": "6" * 64}, "w": "7" * 64}, inputs_pinned=True,
            library={"sha256": "3" * 64, "compiler": value},
            findings=[Finding(severity="error", about="numpy", message=reason)],
            commit="4" * 40, dirty=True,
            pairs={name: {"plain": {"16": {"out": DETAIL}}}},
            measures={"plain": taken(), name: taken(reason)},
        ),
    )  # fmt: skip


DETAIL = PairDetail(
    ulp_max=5000, ulp_median=3, ulp={"1": 99, "2": 10_000}, first=[0, 3], bits=["3f800001", "3f800000"],
    rows=16, rows_differ=15, kinds={"nan": 2, "signed_zero": 1},
)  # fmt: skip


def taken(reason: str | None = None) -> Measures:
    """Measures that went well, or that all have a reason."""
    if reason is not None:
        none = {"status": "unavailable", "reason": reason, "seconds": None, "result": None}
        # Half of a character is refused in these; a free text may hold it.
        key = reason[:200].encode(errors="replace").decode()
        return Measures.model_validate(
            {
                "repeatability": none,
                "second_process": {"status": "crashed", "reason": reason, "differ": {}},
                "batch_invariance": {
                    "status": "done", "reason": None, "seconds": 1.5,
                    "result": {
                        "quick": True, "complete": True,
                        "checks": {key: {key: {"compared": 9, "differ": 2}}},
                        "first": [{"check": key, "tensor": key, "batch": 3, "row": 1, "byte": 4,
                                   "expected": "00000000", "found": "00000001"}],
                    },
                },
                "latency": none,
                "accuracy": none,
                "precision": {
                    "status": "done", "reason": None, "seconds": 0.5,
                    "result": {"bits": {"4": {key: 11}}, "complete": True},
                },
            }
        )  # fmt: skip
    timing = {"median_us": 1234.5, "min_us": 1000.0, "max_us": 2e6, "repeats": 9}
    error = {"scale": 2.0, "max_abs": 1e-6, "rms_abs": 2e-7, "max_ulp": 12.5, "median_ulp": 0.5, "not_finite": 0}
    done = {"status": "done", "reason": None, "seconds": 1.0}
    return Measures.model_validate(
        {
            "repeatability": {**done, "result": {"calls": 2, "differ": {}, "complete": True}},
            "second_process": {"status": "done", "reason": None, "differ": {}},
            "batch_invariance": {
                **done,
                "result": {
                    "quick": False, "complete": True, "first": [],
                    "checks": {"alone": {"out": {"compared": 2369, "differ": 0}}},
                },
            },
            "accuracy": {**done, "result": {"cases": {"4": {"out": error, "grads.x": error}}, "complete": True}},
            "latency": {
                **done,
                "result": {
                    "clock": "CUDA events", "load": [0.5, 1.0], "complete": True,
                    "cases": {"4": {"forward": timing, "whole": timing}, "16": {"forward": None, "whole": timing}},
                },
            },
            "precision": {**done, "result": {"bits": {"4": {"forward operand": 24}}, "complete": True}},
            "clocks": {"sm_mhz": [1980, 1755], "sm_max_mhz": 1980, "held_down_ns": {"power": 5}, "throttle": ["power"]},
        }
    )  # fmt: skip


def test_the_published_report_renders_as_the_golden_file() -> None:
    held("b200_timestep_mlp.md", render.markdown(published()))


def test_the_committed_example_is_what_its_report_renders_to_and_the_readme_quotes_it() -> None:
    example = REPOSITORY / "docs" / "example" / "cpu_timestep_mlp.json"
    text = example.with_suffix(".md").read_text()
    assert render.markdown(report.load(example)) == text
    quoted = [line for line in (REPOSITORY / "README.md").read_text().splitlines() if line.startswith("| `d")]
    assert quoted
    assert all(line in text for line in quoted)


def test_a_report_with_every_status_renders_as_the_golden_file() -> None:
    held("every_status.md", render.markdown(small(narrowed=("--case 4",))))


def tables(text: str) -> list[list[str]]:
    """The tables of a Markdown text, each a list of its lines."""
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def columns(line: str) -> int:
    """Columns as GitHub counts them: a backslash keeps a pipe, also inside code."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) - 1


hostile = st.text(
    st.one_of(st.characters(), st.sampled_from(list("|`\\\n\r\t<>*_[]&\x00\x1b\u2028\u202e\x85"))),
    min_size=1,
    max_size=60,
)


@given(name=hostile, reason=hostile, value=hostile)
@settings(max_examples=150)
def test_no_name_or_reason_breaks_a_table(name: str, reason: str, value: str) -> None:
    assume(name not in small().bitmatrix.cells or name == "other")  # type: ignore[union-attr]
    text = render.markdown(small(name=name, reason=reason, value=value))
    found = tables(text)
    assert [len(table) for table in found] == [len(table) for table in tables(render.markdown(small()))]
    for table in found:
        assert len({columns(line) for line in table}) == 1
    assert all(character == "\n" or character.isprintable() for character in text)
    assert "<script" not in text.lower()


def test_a_very_long_reason_is_cut_in_the_table_alone() -> None:
    long = small(reason="x" * 5000)
    assert "x" * 301 not in render.markdown(long)
    assert "…" in render.markdown(long)
    assert "x" * 5000 in report.dumps(long)


def test_a_cut_text_shows_that_it_was_cut() -> None:
    assert render.code("x" * 300) == f"`{'x' * 300}`"
    assert render.code("x" * 301) == f"`{'x' * 299}…`"


def published() -> Report:
    return report.load(REPOSITORY / "baselines" / "b200_timestep_mlp.json")


def row(text: str, section: str, cell: str, case: int) -> list[str]:
    """The tensors' marks in one row of a table."""
    table = text.split(f"## vs `{section}`")[1].split("\n## ")[0]
    found = next(line for line in table.split("\n") if line.startswith(f"| `{cell}` | {case} |"))
    return [mark.strip() for mark in found.split("|")[3:-1]]


def test_a_difference_stands_under_its_own_tensor_though_another_is_missing() -> None:
    whole, ragged = published(), published()
    del ragged.results["rl_kernel"].versus["diffusers[plain]"]["4"].grads["w1"]
    marks = row(render.markdown(whole), "diffusers[plain]", "rl_kernel", 4)
    assert row(render.markdown(ragged), "diffusers[plain]", "rl_kernel", 4) == [*marks[:2], "absent", *marks[3:]]
    assert row(render.markdown(ragged), "diffusers[plain]", "rl_kernel", 1) == row(
        render.markdown(whole), "diffusers[plain]", "rl_kernel", 1
    )


@pytest.mark.parametrize("lost", ["case", "tensor"])
def test_a_cell_is_not_called_equal_where_something_of_it_is_missing(lost: str) -> None:
    made = small()
    cases = made.results["other"].versus["plain"]
    cases |= {case: Case(out=[EQUAL], grads={"x": EQUAL}) for case in ("4", "16")}
    assert "every case: `other`" in render.markdown(made)
    if lost == "case":
        del cases["16"]
    else:
        del cases["16"].grads["x"]
    assert "No cell is equal in every bit" in render.markdown(made)


def test_a_cell_with_the_reference_bits_throughout_is_named_at_the_top() -> None:
    made = small()
    assert made.bitmatrix is not None
    made.bitmatrix.digests["other"] = made.bitmatrix.digests["plain"]
    made.bitmatrix.classes = report.classes(made.bitmatrix.digests)
    text = render.markdown(made)
    assert "`other` is `plain`, bit for bit." in text.split("## ")[0]
    assert "- `plain`, `other`: every tensor in every case." in text


def test_a_report_without_digests_names_the_cells_that_its_comparisons_prove_equal() -> None:
    text = render.markdown(published())
    assert (
        "- `diffusers[plain]`, `diffusers[megatron_te_native]`: d x, d w1 (T = 4, 64, 2048), d b1 (T = 4, 64)" in text
    )
    # The two differ from both references by equal counts, which proves nothing about each other.
    assert "`diffusers[megatron_triton]`, `diffusers[sglang]`: " not in text


@pytest.mark.parametrize(("tf32", "word"), [(True, "on"), (False, "off"), (None, "unknown")])
def test_tf32_is_off_only_where_that_is_known(tf32: bool | None, word: str) -> None:
    made = published()
    made.environment.tf32 = tf32
    assert f"TF32 {word}" in render.markdown(made)


def test_a_report_without_results_still_renders() -> None:
    made = published()
    made.results.clear()
    assert "No two cells return the same bits in any tensor" in render.markdown(made)


@pytest.mark.parametrize(
    ("comparison", "mark"),
    [(EQUAL, "="), (UNLIKE, "10,099 / 10,752 · 1.2e-06"), (NONE, "8 / 8 · no finite pair")],
)
def test_equal_is_quiet_and_a_difference_says_how_many_and_how_large(comparison: Comparison, mark: str) -> None:
    assert render.mark(comparison) == mark


def test_an_inert_cell_is_never_called_equal() -> None:
    path = REPOSITORY / "baselines" / "h200_timestep_mlp.json"
    made = report.load(path)
    assert made.bitmatrix is not None
    twin = "diffusers[vllm]"
    made.bitmatrix.digests[twin] = made.bitmatrix.digests["diffusers[plain]"]
    made.bitmatrix.classes = report.classes(made.bitmatrix.digests)
    for case in made.results[twin].versus["diffusers[plain]"].values():
        for comparison in [*case.out, *case.grads.values()]:
            comparison.equal, comparison.differ, comparison.max_abs = True, 0, 0.0
    active = render.markdown(made)
    assert "`diffusers[vllm]` is `diffusers[plain]`, bit for bit" in active
    assert "**1 of 3 return the bits of `diffusers[plain]` in every tensor and case.**" in active
    made.bitmatrix.cells[twin].inert = True
    made.bitmatrix.cells[twin].note = "inert: its activation replaced no operator and set nothing"
    quiet = render.markdown(made)
    assert "No two return the same bits in every tensor and case" in quiet
    assert "**0 of 2 return the bits" in quiet
    assert f"| `{twin}` | 64 | inert | inert |" in quiet
    assert "`diffusers[vllm]`: inert: its activation" in quiet
