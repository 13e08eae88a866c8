"""A cell knows of every other that ran at the same time, also of one that began later and ended first."""

from __future__ import annotations

from pathlib import Path

from harness import company


def test_a_cell_alone_met_nobody(tmp_path: Path) -> None:
    for _ in range(2):
        with company.kept(tmp_path) as met:
            assert not met()
    assert list(tmp_path.iterdir()) == []


def test_each_of_two_cells_met_the_other_whichever_ends_first(tmp_path: Path) -> None:
    with company.kept(tmp_path) as first:
        with company.kept(tmp_path) as second:
            assert second()
        assert first()


def test_what_a_killed_cell_left_is_no_company(tmp_path: Path) -> None:
    (tmp_path / "left").touch()
    with company.kept(tmp_path) as met:
        assert not met()
    assert not (tmp_path / "left").exists()
