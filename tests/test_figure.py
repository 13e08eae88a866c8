"""Figures are drawn from any report, the same each time, and no name in them is mathematics or markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from test_page import ATTACK, many
from test_render import small

from harness import cli, figure, report
from harness.workspace import REPOSITORY

CPU = REPOSITORY / "docs" / "example" / "cpu_timestep_mlp.json"
PUBLISHED = REPOSITORY / "baselines" / "b200_timestep_mlp.json"


def test_a_measured_report_gives_two_figures_the_same_each_time(tmp_path: Path) -> None:
    loaded = report.load(CPU)
    drawn = figure.draw(loaded, tmp_path / "a")
    assert sorted(path.name for path in drawn) == ["heatmap.png", "heatmap.svg", "measures.png", "measures.svg"]
    again = figure.draw(loaded, tmp_path / "b")
    assert [path.read_bytes() for path in drawn] == [path.read_bytes() for path in again]
    for path in drawn:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_a_published_report_gives_its_heat_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figure", str(PUBLISHED), str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "heatmap.svg"), str(tmp_path / "heatmap.png")]


@pytest.mark.parametrize("name", [ATTACK, "$\\frac{1}{", "x" * 5000, "\u65e5\u672c"])
def test_whatever_a_name_holds_a_figure_is_drawn(tmp_path: Path, name: str) -> None:
    figure.draw(small(), tmp_path / "plain")
    for path in figure.draw(small(name=name, reason=name, value=name), tmp_path):
        if path.suffix == ".svg":
            assert tags(path) == tags(tmp_path / "plain" / path.name)


@pytest.mark.parametrize(
    ("figure_of", "value"),
    [("ulp_median", 10**400), ("max_abs", 1.7e308), ("rms_abs", 0.0), ("rms_abs", 1.7e308), ("scale", 5e-324),
     ("scale", 0.0), ("median_us", 0.0), ("median_us", 1.7e308)],
    ids=lambda value: str(value)[:10],
)  # fmt: skip
def test_whatever_a_number_is_a_figure_is_drawn(tmp_path: Path, figure_of: str, value: float) -> None:
    text, count = re.subn(rf'("{figure_of}": )[0-9][0-9.e+-]*', rf"\g<1>{value!r}", report.dumps(small()))
    assert count
    (tmp_path / "made_up.json").write_text(text)
    assert cli.main(["figure", str(tmp_path / "made_up.json"), str(tmp_path)]) == 0
    assert cli.main(["page", str(tmp_path / "made_up.json"), str(tmp_path / "made_up.html")]) == 0
    assert cli.main(["compare", str(PUBLISHED), str(tmp_path / "made_up.json")]) == 0


def tags(path: Path) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}


def test_many_cells_are_cut_to_what_a_figure_can_show(tmp_path: Path) -> None:
    figure.draw(many(100), tmp_path)
    assert (tmp_path / "heatmap.png").stat().st_size < 2 << 20


def test_a_report_with_nothing_to_draw_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = report.load(PUBLISHED)
    for result in empty.results.values():
        for cases in result.versus.values():
            cases.clear()
    report.write(tmp_path / "empty.json", empty)
    assert cli.main(["figure", str(tmp_path / "empty.json"), str(tmp_path)]) == 2
    assert "there is no figure to draw" in capsys.readouterr().err
