"""Verdicts against reports of which the truth is known: the published ones, and ones made for it."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from test_render import small, taken

from harness import report, verdict
from harness.grid import Grid
from harness.report import Report
from harness.workspace import REPOSITORY

PUBLISHED = report.load(REPOSITORY / "baselines" / "b200_timestep_mlp.json")
H200 = report.load(REPOSITORY / "baselines" / "h200_timestep_mlp.json")


def measured(**changes: dict[str, Any]) -> Report:
    """The small report, its cell `other` with measures that went well but for these results."""
    made = small()
    assert made.bitmatrix is not None
    data = taken().model_dump()
    for name, result in changes.items():
        if name == "second_process":
            data[name] |= result
        else:
            data[name]["result"] |= result
    made.bitmatrix.measures = {"plain": taken(), "other": type(taken()).model_validate(data)}
    made.bitmatrix.cells["other"].note = None
    # Its comparisons are shared by every report of `small`.
    return made.model_copy(deep=True)


def other(made: Report) -> report.Verdict:
    return verdict.every(made)["other"]


def test_the_published_report_shows_which_modes_are_tf32_and_which_are_not() -> None:
    found = verdict.every(PUBLISHED)
    reduced = {cell for cell, one in found.items() if one.kinds == ["reduced_precision"]}
    assert reduced == {"diffusers[sglang]", "diffusers[megatron_triton]"}
    assert found["diffusers[plain]"].kinds == ["reference"]
    rest = [cell for cell in found if cell not in reduced and cell != "diffusers[plain]"]
    assert all(found[cell].kinds == ["other_order"] for cell in rest), found
    assert all("No probe was run" in found[cell].evidence[-1] for cell in [*reduced, *rest])


def test_the_published_report_says_which_modes_are_one_another() -> None:
    assert Grid(PUBLISHED).twins == [
        ["diffusers[megatron_triton]", "diffusers[sglang]"],
        ["diffusers[megatron_triton_ieee]", "diffusers[sglang_ieee]"],
    ]


def test_the_h200s_report_shows_sglangs_tf32_and_what_could_not_run() -> None:
    found = verdict.every(H200)
    assert found["diffusers[sglang]"].kinds == ["reduced_precision"]
    assert found["diffusers[sglang_ieee]"].kinds == found["diffusers[vllm]"].kinds == ["other_order"]
    assert found["rl_kernel"].kinds == ["not_comparable"]
    assert "rl_engine is not installed" in found["rl_kernel"].sentence


def test_full_precision_that_differs_is_another_order() -> None:
    found = other(measured())
    assert found.kinds == ["other_order"]
    assert found.reference == "plain"
    assert found.sentence.startswith("Same precision, other order: differs from plain in 2 of 4 tensors, by 3 ULP")
    assert "RMS error against FP64: 1.0e-07 of the result's own scale (median of tensors), 1 times that of plain." in (
        found.evidence
    )


@pytest.mark.parametrize(("bits", "words"), [(11, "(TF32-like)"), (8, "(BF16-like)"), (13, "precision: it keeps 13")])
def test_what_the_probe_counts_is_the_verdict(bits: int, words: str) -> None:
    found = other(measured(precision={"bits": {"4": {"forward operand": 24, "input gradient": bits}}}))
    assert found.kinds == ["reduced_precision"]
    assert words in found.sentence
    assert any("input gradient" in line for line in found.evidence)


def test_a_path_that_returns_no_number_exactly_is_not_called_short() -> None:
    found = other(measured(precision={"bits": {"4": {"forward operand": 0}}}))
    assert found.kinds == ["other_order"]
    assert found.sentence.startswith("Likely the same precision")
    assert not any("No probe was run" in line for line in found.evidence)


def test_the_fewest_bits_of_any_case_count() -> None:
    """A single row takes another path: a TF32 mode keeps 24 bits there and 11 in every other case."""
    found = other(measured(precision={"bits": {"1": {"forward operand": 24}, "64": {"forward operand": 11}}}))
    assert found.kinds == ["reduced_precision"]


def test_a_batch_dependent_cell_is_named_with_its_count_and_first_failure() -> None:
    first = {"check": "alone", "tensor": "grads.x", "batch": 64, "row": 7, "byte": 0}
    first |= {"expected": "00000000", "found": "00000001"}
    checks = {"alone": {"out": {"compared": 64, "differ": 0}, "grads.x": {"compared": 64, "differ": 12}}}
    found = other(measured(batch_invariance={"checks": checks, "first": [first]}))
    assert found.kinds == ["not_batch_invariant", "other_order"]
    assert any("12 of 128 rows" in line and "first: d x, row 7 of 64" in line for line in found.evidence)


def test_other_bits_in_a_second_call_or_process_come_first() -> None:
    found = other(measured(repeatability={"differ": {"4": {"out": 1}}}))
    assert found.kinds[0] == "not_repeatable"
    assert "when called again" in found.sentence
    found = other(measured(second_process={"differ": {"4": ["grads.x"]}}))
    assert found.kinds[0] == "not_repeatable"
    assert "in a second process" in found.sentence


def test_a_check_that_time_stopped_proves_no_invariance() -> None:
    found = other(measured(batch_invariance={"complete": False}))
    assert not any(line.startswith("Batch-invariant") for line in found.evidence)


def test_an_inert_mode_is_inert_even_where_it_equals_the_reference() -> None:
    made = measured()
    assert made.bitmatrix is not None
    made.bitmatrix.cells["other"].inert = True
    for case in made.results["other"].versus["plain"].values():
        for comparison in [*case.out, *case.grads.values()]:
            comparison.equal, comparison.differ = True, 0
    found = other(made)
    assert found.kinds == ["inert", "identical"]
    assert found.sentence.startswith("Inert: ")


def test_equal_everywhere_is_bit_identical() -> None:
    made = measured()
    for case in made.results["other"].versus["plain"].values():
        for comparison in [*case.out, *case.grads.values()]:
            comparison.equal, comparison.differ = True, 0
    found = other(made)
    assert found.kinds == ["identical"]
    assert found.sentence == "Bit-identical to plain in every tensor and case"
    made.cases.append(64)
    assert other(made).sentence.endswith("in the cases that were compared")


def test_without_measures_a_far_distance_is_likely_reduced_precision_and_says_so() -> None:
    made = small()
    assert made.bitmatrix is not None
    assert made.bitmatrix.pairs is not None
    made.bitmatrix.measures = None
    made.bitmatrix.cells["other"].note = None
    detail = made.bitmatrix.pairs["other"]["plain"]["16"]["out"]
    made.bitmatrix.pairs["other"]["plain"]["16"]["out"] = detail.model_copy(update={"ulp_median": 4000})
    found = other(made)
    assert found.kinds == ["reduced_precision"]
    assert found.sentence.startswith("Likely reduced precision")
    made.bitmatrix.pairs = None
    found = other(made)
    assert found.kinds == ["differs"]
    assert "nothing here tells" in found.sentence


def test_without_its_reference_a_cell_is_held_against_the_next_or_nothing() -> None:
    made = small()
    del made.results["plain"]
    assert made.bitmatrix is not None
    made.bitmatrix.cells["plain"].status = "failed"
    found = verdict.every(made)
    assert found["plain"].kinds == ["not_comparable"]
    assert found["other"].reference == "plain" or "not_comparable" in found["other"].kinds


def test_every_verdict_of_every_report_has_a_kind_and_a_sentence() -> None:
    for path in [*(REPOSITORY / "baselines").glob("*.json"), *(REPOSITORY / "docs" / "example").glob("*.json")]:
        loaded = report.load(path)
        found = verdict.every(loaded)
        assert list(found) == Grid(loaded).cells
        assert all(one.kinds and one.sentence for one in found.values())


def test_every_kind_has_a_meaning_for_its_reader() -> None:
    assert set(verdict.MEANINGS) == set(get_args(report.VerdictKind))


def test_the_summary_counts_each_cell_once_and_an_inert_one_never() -> None:
    for path in [*(REPOSITORY / "baselines").glob("*.json"), *(REPOSITORY / "docs" / "example").glob("*.json")]:
        grid = Grid(report.load(path))
        found = verdict.summary(grid, verdict.every(grid.report))
        assert found.reference
        assert sorted([found.reference, *found.equal, *found.unlike, *found.lost]) == sorted(grid.cells)
    made = measured()
    assert made.bitmatrix is not None
    made.bitmatrix.cells["other"].inert = True
    found = verdict.summary(Grid(made), verdict.every(made))
    assert "other" not in [*found.equal, *found.unlike]


def test_a_report_keeps_the_verdicts_it_was_made_with(tmp_path: Any) -> None:
    made = measured()
    assert made.bitmatrix is not None
    made.bitmatrix.verdicts = verdict.every(made)
    report.write(tmp_path / "r.json", made)
    again = report.load(tmp_path / "r.json")
    assert again.bitmatrix is not None
    assert again.bitmatrix.verdicts == verdict.every(again)
