"""Figures keep their bounds, and say so beside their reference."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figure, Shape, cold_figures, growth_figures, main_figures, middle, report

SHAPE = Shape(nodes=2, floor=8.0, srun=20.0, up=24.0, again=4.0, teardown=5.0)


@pytest.mark.parametrize(("value", "at_most", "verdict"), [(10, 10, "pass"), (10.01, 10, "FAIL"), (99, None, "")])
def test_a_bound_is_kept_or_not(value: float, at_most: float | None, verdict: str):
    assert Figure("x", value, at_most=at_most).verdict == verdict


def test_the_bounds_of_bring_up():
    figures = {f.name: f for f in main_figures(SHAPE)}
    ratio = figures["up to the first srun, times the floor"]
    assert (ratio.value, ratio.unit, ratio.at_most, ratio.verdict) == (2.5, "x", 2.5, "pass")
    bounds = {f.at_most for f in figures.values()}
    assert bounds == {None, 30, 2.5, 10, 15}


def test_growth_is_held_against_linear_growth_from_the_smallest_size():
    large = Shape(nodes=32, floor=60, srun=150, up=192, again=12, teardown=30)
    medium = Shape(nodes=8, floor=20, srun=90, up=115.2, again=12, teardown=30)
    figures = {f.name: f for f in growth_figures([large, SHAPE, medium])}
    assert figures["2 nodes, per node"].value == 12
    assert (figures["32 nodes, times linear"].value, figures["32 nodes, times linear"].verdict) == (0.5, "pass")
    assert (figures["8 nodes, times linear"].value, figures["8 nodes, times linear"].verdict) == (1.2, "FAIL")


def test_repeated_runs_count_by_their_median():
    runs = [Shape(2, floor, srun, 25, 4, 5) for floor, srun in ((7, 30), (9, 20), (8, 19))]
    assert middle(runs) == Shape(2, 8, 20, 25, 4, 5)


def test_cold_shares_add_up():
    figures = cold_figures({"pulumi": {"seconds": 270.0}, "image": {"seconds": 110.0}}, warm_s=20.0)
    assert [f.reference for f in figures[:3]] == ["68% of 400 s", "28% of 400 s", "5% of 400 s"]
    assert (figures[-1].value, figures[-1].verdict) == (400.0, "pass")


def test_the_report_shows_figure_reference_bound_and_verdict():
    lines = report(main_figures(SHAPE)).splitlines()
    assert lines[0].split() == ["figure", "measured", "reference", "bound", "verdict"]
    assert " ".join(lines[3].split()) == "up to the first srun across 2 nodes 20.00 s floor 8.0 s <= 30 s pass"
