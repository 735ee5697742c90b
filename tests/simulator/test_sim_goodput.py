"""The time that failures and checkpoints add to a run: formulas, properties and published runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.whole_run import failures, goodput
from simulator.whole_run.goodput import Conditions, Work

DAY = 86400.0

conditions = st.builds(
    Conditions,
    failure_s=st.floats(600, 1e8),
    save_s=st.floats(0.01, 120),
    write_s=st.floats(0, 300),
    restart_s=st.floats(0, 3600),
)


def test_young_and_best_availability_match_their_formulas() -> None:
    c = Conditions(failure_s=50_000, save_s=4, restart_s=100)
    assert goodput.young_interval_s(c) == pytest.approx(math.sqrt(2 * 50_000 * 4))
    assert goodput.availability_interval_s(c) == pytest.approx(4 + math.sqrt(2 * 50_100 * 4 + 16))


def test_stretch_without_failures_contains_only_saves() -> None:
    assert goodput.stretch(Conditions(save_s=5), 500) == pytest.approx(1.01)


def test_stretch_with_rare_failures_matches_first_order() -> None:
    c = Conditions(failure_s=1e6, save_s=2, restart_s=300, write_s=50)
    lost = 2 / 1000 + (1000 / 2 + 300 + 50) / 1e6
    assert goodput.stretch(c, 1000) == pytest.approx(1 + lost, abs=2e-5)


def test_interruption_with_warning_loses_no_work() -> None:
    c = Conditions(save_s=2, write_s=48, warned_s=10_000, warned_restart_s=450)
    assert goodput.stretch(c, 1e9) == pytest.approx(1 / (1 - 500 / 10_000), rel=1e-6)


def test_job_that_fails_faster_than_it_restarts_never_ends() -> None:
    assert goodput.stretch(Conditions(failure_s=1, restart_s=1000), 10) == math.inf
    assert goodput.stretch(Conditions(warned_s=100, warned_restart_s=100), 10) == math.inf


@given(conditions, st.floats(0.05, 20))
def test_no_interval_beats_the_optimal_one(c: Conditions, factor: float) -> None:
    best = goodput.optimal_interval_s(c)
    assert goodput.stretch(c, best) <= goodput.stretch(c, best * factor) * (1 + 1e-9)
    assert goodput.stretch(c, best) <= goodput.stretch(c, goodput.young_interval_s(c)) * (1 + 1e-9)
    assert goodput.stretch(c, best) <= goodput.stretch(c, goodput.availability_interval_s(c)) * (1 + 1e-9)


@given(conditions, st.floats(0.1, 30))
def test_chosen_interval_covers_the_write_and_is_nearly_optimal(c: Conditions, step_s: float) -> None:
    steps = goodput.choose_interval(c, step_s)
    least = max(1, math.ceil(c.write_s / step_s))
    assert steps >= least
    for other in {least, steps + 1, 2 * steps}:
        assert goodput.stretch(c, steps * step_s) <= goodput.stretch(c, other * step_s) * (1 + goodput.MIN_GAIN + 1e-9)


def test_saves_are_less_frequent_if_that_costs_little() -> None:
    seldom = Conditions(failure_s=1e6, save_s=0.01, write_s=80)
    assert goodput.choose_interval(seldom, 1) == 400
    often = Conditions(failure_s=5000, save_s=0.01, write_s=500)
    assert goodput.choose_interval(often, 1) == 500


@given(conditions, st.integers(1000, 100_000), st.floats(0.1, 10), st.floats(0, DAY))
def test_outlook_is_consistent(c: Conditions, steps: int, step_s: float, wait_s: float) -> None:
    work = Work(steps=steps, step_s=step_s, low_s=0.9 * step_s, high_s=1.2 * step_s)
    outlook = goodput.predict_outlook(replace(c, failure_factors=(0.3, 3.0)), work, wait_s)
    assert outlook.wall_s >= steps * step_s + wait_s
    assert 0 <= outlook.goodput <= 1
    assert outlook.low_s < outlook.wall_s < outlook.high_s or math.isinf(outlook.wall_s)


@given(conditions, st.floats(1, 10))
def test_more_failures_never_shorten_a_run(c: Conditions, factor: float) -> None:
    often = replace(c, failure_s=c.failure_s / factor)
    assert goodput.stretch(often, 1000) >= goodput.stretch(c, 1000) * (1 - 1e-12)


def test_failure_rate_lies_between_published_rates() -> None:
    rate = failures.rate()
    hours = [count.gpu_hours for count in failures.load_failure_counts()]
    assert min(hours) < rate.gpu_hours < max(hours)
    assert rate.low < rate.gpu_hours < rate.high
    assert rate.mean_s(2048) == pytest.approx(rate.mean_s(1024) / 2)


def test_published_failure_rates() -> None:
    by_name = {count.name: count.gpu_hours for count in failures.load_failure_counts()}
    assert by_name["Llama 3 405B"] == pytest.approx(50_700, rel=0.001)
    assert by_name["OPT-175B"] == pytest.approx(11_900, rel=0.001)
    assert by_name["Meta RSC-1"] == pytest.approx(8 * 24 * 1000 / 6.5)


def test_goodput_of_llama_3_exceeds_90_percent() -> None:
    """arXiv 2407.21783 reports over 90 % effective time. Computed from its failure count and our recovery time."""
    restart = failures.restart_s(30) + failures.replacement_s("reservation") + 30
    c = Conditions(failure_s=54 * DAY / 419, save_s=2, write_s=60, restart_s=restart)
    steps = goodput.choose_interval(c, 5)
    assert 0.90 < 1 / goodput.stretch(c, 5 * steps) < 0.96


def test_restart_time_matches_the_recovery_benchmark() -> None:
    assert failures.restart_s(30) == pytest.approx(36 + 17 + 3 + 4 + 1)
    assert failures.restart_s(300) - failures.restart_s(30) == pytest.approx(270)


def test_save_blocks_for_the_part_of_the_copy_that_does_not_overlap() -> None:
    hidden = failures.blocked_s(gb=2, copy_s=0.1, step_s=5)
    assert hidden == pytest.approx(0.0022 + 0.019)
    assert failures.blocked_s(gb=2, copy_s=6, step_s=5) == pytest.approx(0.0022 + 0.95 + 1)


def test_spot_interruption_rate() -> None:
    """15 % of the machines are interrupted per month; the job has 16 nodes."""
    assert failures.spot_mean_s("h100", 16) == pytest.approx(730 * 3600 / -math.log(0.85) / 16)
    assert failures.spot_mean_s("a100", 1) > failures.spot_mean_s("h100", 1)
