"""Delays: drawn from a seed, within their range, shortened by the speed, each with its source."""

from __future__ import annotations

import pytest

from infra.targets.aws.rehearse.delays import RESOURCES, TABLE, Clock, Delay


def test_every_delay_has_a_page_of_aws_or_says_that_it_is_assumed() -> None:
    without = [kind for kind, delay in TABLE.items() if "https://docs.aws.amazon.com/" not in delay.source]
    assert [kind for kind in without if "assumed" not in TABLE[kind].source] == []


def test_what_is_created_with_a_delay_is_deleted_with_a_delay() -> None:
    assert [kind for kind in RESOURCES if f"{kind} deletion" not in TABLE] == []


def test_the_same_seed_repeats_a_rehearsal() -> None:
    first, again, other = Clock(7, 1), Clock(7, 1), Clock(8, 1)
    draws = [(kind, subject) for kind in TABLE for subject in ("gpu-1#1", "gpu-1#2")]
    assert [first.draw(*draw) for draw in draws] == [again.draw(*draw) for draw in reversed(draws)][::-1]
    assert [first.draw(*draw) for draw in draws] != [other.draw(*draw) for draw in draws]
    assert first.draw("instance pending", "gpu-1#1") != first.draw("instance pending", "gpu-1#2")


def test_draws_stay_within_their_range() -> None:
    for kind, delay in TABLE.items():
        seconds = [Clock(seed, 1).draw(kind, "x") for seed in range(50)]
        assert delay.least_s <= min(seconds)
        assert max(seconds) <= delay.most_s


def test_speed_shortens_the_wait_but_not_the_time_on_aws() -> None:
    slept: list[float] = []
    clock = Clock(1, 20, {"boot": Delay(60, 60, "test")}, slept.append)
    assert clock.wait("boot", "gpu-1#1") == 60
    assert slept == [3]


@pytest.mark.parametrize("speed", [0, -1, float("nan")])
def test_a_speed_that_is_not_positive_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="is not a number above 0"):
        Clock(1, speed)


@pytest.mark.parametrize(("least", "most"), [(-1, 2), (3, 2), (float("nan"), 1)])
def test_an_impossible_range_is_refused(least: float, most: float) -> None:
    with pytest.raises(ValueError, match="allowed: 0 <= least <= most"):
        Delay(least, most, "test")
