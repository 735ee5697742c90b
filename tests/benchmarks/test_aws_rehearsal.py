"""Figures in the output of a rehearsal."""

from __future__ import annotations

import pytest

from benchmarks.aws_rehearsal import REHEARSALS, Rehearsed, make_figures
from infra.targets.aws.rehearse.cold_start import ColdStart
from infra.targets.aws.rehearse.first_job import FirstJob, compare_images

END = "✓ rehearsed in 142 s; timeline: /home/rehearsals/aws-g6-pair/timeline.svg\n"
PAIR = next(iter(REHEARSALS))


def test_the_lines_that_a_rehearsal_prints_become_figures() -> None:
    images = compare_images(FirstJob(53, 34, 9), FirstJob(42, 0, 6))
    output = f"{ColdStart(2, 62, 34, 8, 1)}\n{images}\n{END}"
    wall, cold, baked = make_figures(PAIR, REHEARSALS[PAIR], output)
    assert (wall.value, wall.unit, wall.at_most, wall.verdict) == (142, "s", 300, "pass")
    assert (cold.value, cold.verdict) == (107, "")
    assert (baked.value, baked.unit, baked.verdict) == (50, "%", "pass")
    assert baked.reference == "48 s instead of 96 s on AWS"


def test_a_slow_rehearsal_and_a_slow_image_exceed_their_bounds() -> None:
    images = compare_images(FirstJob(53, 34, 9), FirstJob(42, 0, 11))
    figures = list(make_figures(PAIR, Rehearsed((), 100), f"{images}\n{END}"))
    assert [figure.verdict for figure in figures] == ["FAIL", "FAIL"]


def test_a_rehearsal_that_has_not_ended_has_no_figures() -> None:
    with pytest.raises(ValueError, match="the output has no line `rehearsed in`"):
        list(make_figures(PAIR, REHEARSALS[PAIR], ""))
