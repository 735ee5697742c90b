"""Figures in the output of a rehearsal."""

from __future__ import annotations

import pytest

from benchmarks.aws_rehearsal import REHEARSALS, Rehearsed, make_figures
from infra.targets.aws.rehearse.cold_start import ColdStart, check_baked_start
from infra.targets.aws.rehearse.first_job import FirstJob, compare_images
from infra.targets.aws.rehearse.idle_cost import SetUpTime, describe_idle_cost

END = """\
   121.5 s  job 1: completed
   133.0 s  job 2: completed
✓ rehearsed in 142 s; timeline: /home/rehearsals/aws-g6-pair/timeline.svg
"""
PAIR = next(iter(REHEARSALS))


def test_the_lines_that_a_rehearsal_prints_become_figures() -> None:
    images = compare_images(FirstJob(53, 34, 9), FirstJob(42, 0, 6))
    output = f"{ColdStart(2, 62, 34, 8, 1)}\n{images}\n{END}"
    wall, cold, baked = make_figures(PAIR, REHEARSALS[PAIR], output)
    assert (wall.value, wall.unit, wall.at_most, wall.verdict) == (121.5, "s", 300, "pass")
    assert wall.reference == "on this machine; 142 s with teardown"
    assert (cold.value, cold.verdict) == (107, "")
    assert (baked.value, baked.unit, baked.verdict) == (14, "%", "pass")
    assert baked.reference == "48 s instead of 96 s on AWS with the boots as drawn, 50 %"


def test_a_slow_rehearsal_and_a_slow_image_exceed_their_bounds() -> None:
    images = compare_images(FirstJob(53, 34, 9), FirstJob(42, 0, 22))
    figures = list(make_figures(PAIR, Rehearsed((), 100), f"{images}\n{END}"))
    assert [figure.verdict for figure in figures] == ["FAIL", "FAIL"]


def test_idle_nodes_and_the_start_from_a_baked_image_have_bounds() -> None:
    idle = describe_idle_cost([SetUpTime(10, 110, 36)], SetUpTime(10, 1010, 0))
    baked = check_baked_start(ColdStart(2, 62, 0, 8, 1))
    _, idle_share, start = make_figures(PAIR, REHEARSALS[PAIR], f"{idle}\n{baked}\n{END}")
    assert (idle_share.value, idle_share.unit, idle_share.verdict) == (10, "%", "pass")
    assert idle_share.reference == "1.00 USD instead of 10.00 USD if launched at once"
    assert (start.value, start.at_most, start.reference) == (11, 30, "besides a boot of 62 s")


def test_a_rehearsal_that_has_not_ended_has_no_figures() -> None:
    with pytest.raises(ValueError, match="the output has no line `rehearsed in`"):
        list(make_figures(PAIR, REHEARSALS[PAIR], ""))
    with pytest.raises(ValueError, match="no job has completed"):
        list(make_figures(PAIR, REHEARSALS[PAIR], END.splitlines()[-1]))
