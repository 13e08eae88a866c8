"""The table is good to read, and whatever a name or reason holds, it keeps its columns."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import render, report
from harness.report import (
    Case,
    CellDetails,
    CellResult,
    Comparison,
    Details,
    Environment,
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


def small(*, name: str = "other", reason: str = "it is so", narrowed: tuple[str, ...] = ()) -> Report:
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

    digests = {"plain": {"4": {"out": "a", "grads.x": "b"}}, name: {"4": {"out": "a", "grads.x": "c"}}}
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
            libraries={"torch": "2.13.0"}, mode_environment={"fast": {"A": "1"}},
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
                )
            },
            classes=report.classes(digests), digests=digests, inputs={}, inputs_pinned=True,
            library={"sha256": "3" * 64, "compiler": "ziglang==1"}, commit="4" * 40, dirty=True,
        ),
    )  # fmt: skip


def test_the_published_report_renders_as_the_golden_file() -> None:
    published = report.load(REPOSITORY / "baselines" / "b200_timestep_mlp.json")
    held("b200_timestep_mlp.md", render.markdown(published))


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


@given(name=hostile, reason=hostile)
@settings(max_examples=150, deadline=None)
def test_no_name_or_reason_breaks_a_table(name: str, reason: str) -> None:
    if name in ("plain", "failed_one"):
        return
    text = render.markdown(small(name=name, reason=reason))
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


@pytest.mark.parametrize(
    ("comparison", "mark"),
    [(EQUAL, "="), (UNLIKE, "10,099 / 10,752 · 1.2e-06"), (NONE, "8 / 8 · no finite pair")],
)
def test_equal_is_quiet_and_a_difference_says_how_many_and_how_large(comparison: Comparison, mark: str) -> None:
    assert render.mark(comparison) == mark
