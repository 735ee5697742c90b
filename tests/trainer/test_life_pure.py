"""Health, stragglers, patience and blame: decisions from numbers, no process needed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trainer.config.schema import HealthConfig
from trainer.life.health import Action, Health
from trainer.life.heartbeat import Beat, Silence, blame
from trainer.life.patience import BEFORE_STEPS_S, Patience
from trainer.life.straggler import Stragglers, slower

CONFIG = HealthConfig(max_skips=2, spike_sigma=4.0, window=20, max_rollbacks=1)


def fed(config: HealthConfig, losses: list[float]) -> Health:
    health = Health(config)
    for step, loss in enumerate(losses):
        assert health.see(step, loss, skipped=False).action is Action.GO
    return health


def calm(count: int = 20) -> list[float]:
    return [2.0 + 0.1 * (i % 2) for i in range(count)]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_skipped_updates_are_counted_and_one_good_one_forgives(loss: float) -> None:
    health = Health(CONFIG)
    assert [health.see(i, loss, skipped=True).action for i in range(2)] == [Action.WARN, Action.WARN]
    assert health.see(2, 2.0, skipped=False).action is Action.GO
    actions = [health.see(3 + i, 2.0, skipped=True).action for i in range(3)]
    assert actions == [Action.WARN, Action.WARN, Action.STOP]


def test_policies_on_numbers_that_are_none() -> None:
    stop = Health(replace(CONFIG, nonfinite="stop")).see(7, math.nan, skipped=True)
    assert (stop.action, stop.message.startswith("step 7: loss nan")) == (Action.STOP, True)
    assert Health(replace(CONFIG, nonfinite="ignore")).see(7, math.nan, skipped=False).action is Action.GO


@pytest.mark.parametrize(("policy", "action"), [("ignore", Action.GO), ("warn", Action.WARN), ("stop", Action.STOP)])
def test_a_spike_is_what_the_policy_says(policy: str, action: Action) -> None:
    assert fed(replace(CONFIG, spike=policy), calm()).see(20, 9.0, skipped=False).action is action


def test_a_loss_that_stands_still_makes_no_spike_of_a_little_noise() -> None:
    assert fed(CONFIG, [2.0] * 20).see(20, 2.05, skipped=False).action is Action.GO


def test_a_new_level_becomes_normal() -> None:
    health = fed(CONFIG, calm())
    actions = [health.see(20 + i, 9.0, skipped=False).action for i in range(10)]
    assert actions[0] is Action.WARN
    assert actions[-1] is Action.GO


def test_rollbacks_are_bounded_also_over_the_state_they_bring_back() -> None:
    health = fed(replace(CONFIG, spike="rollback"), calm())
    saved = health.state()
    assert health.see(20, 9.0, skipped=False).action is Action.ROLLBACK
    health.load_state(saved)
    verdict = health.see(20, 9.0, skipped=False)
    assert verdict.action is Action.STOP
    assert "after 1 rollbacks" in verdict.message


def test_a_resumed_run_judges_as_the_one_before() -> None:
    first, second = fed(CONFIG, calm()), Health(CONFIG)
    second.load_state(first.state())
    assert second.see(20, 9.0, skipped=False) == first.see(20, 9.0, skipped=False)


SLOW, FINE = [0.10, 0.11, 0.10, 0.20], [0.10, 0.11, 0.10, 0.10]


def stragglers_of(*windows: list[float], window: int = 5) -> list[list[str]]:
    """What is said at the end of each window of equal steps; nothing may be said inside one."""
    stragglers = Stragglers(["a", "a", "b", "b"], factor=1.3, window=window, windows=3)
    said = [[str(slow) for slow in stragglers.see(times)] for times in windows for _ in range(window)]
    assert not any(names for index, names in enumerate(said) if (index + 1) % window)
    return said[window - 1 :: window]


def test_a_slow_rank_is_named_with_its_host_once_it_stayed_slow() -> None:
    name = "rank 3 on b works 200 ms per step, 1.90 times the median of 105 ms"
    assert stragglers_of(*[SLOW] * 6) == [[], [], [name], [], [], []]


def test_a_slow_moment_is_no_straggler_and_a_relapse_is_said_again() -> None:
    once = Stragglers(["a", "b", "c"], factor=1.3, window=3, windows=1)
    assert [once.see([0.1, 0.1, 5.0 if i == 1 else 0.1]) for i in range(3)] == [[], [], []]
    assert stragglers_of(SLOW, SLOW, FINE, SLOW, SLOW, FINE) == [[]] * 6
    said = stragglers_of(*[SLOW] * 3, FINE, *[SLOW] * 3)
    assert [len(names) for names in said] == [0, 0, 1, 0, 0, 0, 1]


def test_noise_on_other_ranks_names_nobody() -> None:
    noise = [[0.3 if rank == window % 4 else 0.1 for rank in range(4)] for window in range(12)]
    assert stragglers_of(*noise) == [[]] * 12


def test_only_those_the_others_wait_for_are_named() -> None:
    """Rank 2 has 1.5 times the median's work, of which nobody would notice anything beside rank 1."""
    hosts = ["a", "b", "c", "d", "e"]
    assert [slow.rank for slow in slower([0.02, 0.20, 0.03, 0.02, 0.02], hosts, 1.3)] == [1]
    assert [slow.rank for slow in slower([0.02, 0.20, 0.18, 0.02, 0.02], hosts, 1.3)] == [1, 2]
    assert [slow.rank for slow in slower([0.02, 0.02, 0.03, 0.02, 0.02], hosts, 1.3)] == [2]


def test_nobody_is_slow_before_there_are_times() -> None:
    assert slower([0.0, 0.0], ["a", "b"], 1.3) == []


def test_patience_is_long_before_steps_and_follows_them_after() -> None:
    patience = Patience()
    assert patience.limit_s() == BEFORE_STEPS_S
    for _ in range(5):
        patience.saw_step(0.5)
    assert patience.limit_s() == 60
    for _ in range(50):
        patience.saw_step(10)
    assert patience.limit_s() == 200


def test_patience_that_is_given_counts_from_the_first_step() -> None:
    patience = Patience(hang_s=7)
    assert patience.limit_s() == BEFORE_STEPS_S
    patience.saw_step(0.5)
    assert patience.limit_s() == 7


@pytest.mark.parametrize(("step_s", "expected"), [(None, 1), (0.1, 5), (2, 10), (60, 300)])
def test_after_term_a_rank_has_the_time_of_some_steps(step_s: float | None, expected: float) -> None:
    patience = Patience()
    if step_s is not None:
        patience.saw_step(step_s)
    assert patience.after_term_s() == expected


def beat(rank: int, count: int, phase: str = "compute", tick: int = 1) -> Beat:
    return Beat(rank, f"n-{rank // 2}", count, 7, phase, tick)


def test_the_rank_with_the_fewest_beats_is_behind() -> None:
    said = blame([beat(0, 9), beat(1, 9), beat(2, 8, "data"), beat(3, 9)], [])
    assert said == "behind: rank 2 on n-1 (step 7, data); the furthest is at step 7, compute"


def test_ranks_at_the_same_place_blame_the_network() -> None:
    assert "all 2 ranks are at the same place (step 7, compute)" in blame([beat(0, 9), beat(1, 9)], [])


def test_the_silent_are_named_first_and_not_all_of_a_thousand() -> None:
    beats = [beat(rank, 9) for rank in range(100)]
    said = blame(beats, beats[10:])
    assert said.startswith("silent, their process or node is gone or stuck: rank 10 on n-5")
    assert said.endswith("and 82 more")


def test_silence_is_a_tick_that_does_not_move() -> None:
    silence = Silence()
    assert silence.longer_than(15, [beat(0, 1, tick=1), beat(1, 1, tick=1)], now=100) == []
    assert silence.longer_than(15, [beat(0, 1, tick=9), beat(1, 1, tick=1)], now=110) == []
    assert [b.rank for b in silence.longer_than(15, [beat(0, 1, tick=20), beat(1, 1, tick=1)], now=116)] == [1]
    assert silence.longer_than(15, [beat(0, 1, tick=21), beat(1, 1, tick=2)], now=117) == []
