"""`status` names a clock that differs from the controller's, and not one that only seems to because SSH is slow."""

from __future__ import annotations

import pytest

from infra.targets.hosts.facts import ClockReading, judge_clocks


@pytest.mark.parametrize(
    ("least_s", "most_s", "problem"),
    [
        (0.1, 0.3, ""),
        # The answer took five seconds, in which the clock may have been read at any moment.
        (-4.0, 1.0, ""),
        (3600.0, 3600.2, "its clock is 3600.0 s ahead of the controller's; "),
        (-30.2, -30.0, "its clock is 30.2 s behind the controller's; "),
    ],
)
def test_a_clock_is_judged_by_what_is_certain(least_s: float, most_s: float, problem: str) -> None:
    clocks = {"controller": ClockReading(0.0, 0.2), "cpu-1": ClockReading(least_s, most_s)}
    judged = judge_clocks(clocks, "controller")
    assert judged.get("cpu-1", "").startswith(problem)
    assert bool(judged) == bool(problem)


def test_this_machines_own_clock_does_not_matter() -> None:
    readings = {name: ClockReading(500.0, 500.1) for name in ("controller", "cpu-1", "cpu-2")}
    assert judge_clocks(readings, "controller") == {}


def test_without_the_controllers_clock_none_is_judged() -> None:
    assert judge_clocks({"cpu-1": ClockReading(3600.0, 3600.1)}, "controller") == {}
