"""Verdicts of benchmark figures, and the report that shows them with their references."""

from __future__ import annotations

import pytest

from benchmarks.figures import Figure, Shape, cold_figures, growth_figures, main_figures, middle, report

SHAPE = Shape(nodes=2, floor=8.0, srun=20.0, up=24.0, again=4.0, teardown=5.0)


@pytest.mark.parametrize(("value", "at_most", "verdict"), [(10, 10, "pass"), (10.01, 10, "FAIL"), (99, None, "")])
def test_verdict_compares_value_and_bound(value: float, at_most: float | None, verdict: str):
    assert Figure("x", value, at_most=at_most).verdict == verdict


def test_bounds_of_bring_up():
    figures = {f.name: f for f in main_figures(SHAPE)}
    ratio = figures["up to the first srun, times the floor"]
    assert (ratio.value, ratio.unit, ratio.at_most, ratio.verdict) == (2.5, "x", 2.5, "pass")
    bounds = {f.at_most for f in figures.values()}
    assert bounds == {None, 30, 2.5, 5, 15}


def build_shape(nodes: int, up: float, floor: float) -> Shape:
    return Shape(nodes, floor=floor, srun=up, up=up, again=4, teardown=5)


SMALL = [build_shape(2, 24, 8), build_shape(8, 36, 12)]


@pytest.mark.parametrize(
    ("up", "floor", "per_node", "times_floor"),
    [
        (100, 33, "pass", "pass"),
        (144, 48, "pass", "pass"),  # the same time per node as with 8 nodes
        (145, 48, "FAIL", "pass"),
        (100, 28, "pass", "FAIL"),  # 3.57 times the floor exceeds 3 plus 15 %
    ],
)
def test_growth_is_at_most_linear_and_follows_the_floor(up: float, floor: float, per_node: str, times_floor: str):
    figures = {f.name: f for f in growth_figures([build_shape(32, up, floor), *SMALL])}
    assert figures["32 nodes, up per node"].verdict == per_node
    assert figures["32 nodes, up per node"].at_most == 4.5
    assert figures["32 nodes, up times the floor"].verdict == times_floor
    assert figures["32 nodes, up times the floor"].at_most == 3.45


def test_time_per_added_node_has_no_verdict():
    slope = next(f for f in growth_figures(SMALL) if f.name == "each node from 2 to 8")
    assert (slope.value, slope.reference, slope.verdict) == (2.0, "floor 0.67 s/node", "")


def test_repeated_runs_are_reduced_to_their_median():
    runs = [Shape(2, floor, srun, 25, 4, 5) for floor, srun in ((7, 30), (9, 20), (8, 19))]
    assert middle(runs) == Shape(2, 8, 20, 25, 4, 5)


def test_cold_start_is_set_up_plus_warm_up():
    record = {"seconds": 280.0, "phases": {"pulumi": {"seconds": 270.0}, "image": {"seconds": 110.0}}}
    figures = cold_figures(record, warm_s=20.0)
    assert [(f.name, f.value) for f in figures[:-1]] == [
        ("set-up: pulumi", 270.0),
        ("set-up: image", 110.0),
        ("set-up, wall time", 280.0),
        ("warm up", 20.0),
    ]
    cold = figures[-1]
    assert (cold.name, cold.value, cold.at_most, cold.verdict) == ("recorded set-up plus warm up", 300.0, 720, "pass")


def test_report_shows_reference_bound_and_verdict():
    lines = report(main_figures(SHAPE)).splitlines()
    assert lines[0].split() == ["figure", "measured", "reference", "bound", "verdict"]
    assert " ".join(lines[3].split()) == "up to the first srun across 2 nodes 20.00 s floor 8.0 s <= 30 s pass"
