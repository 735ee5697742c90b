"""Health, stragglers, hang limits and hang reports: decisions from numbers, without processes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trainer.config.schema import HealthConfig
from trainer.data import remote
from trainer.life.hang_limit import BEFORE_STEPS_S, REMOTE_BATCH_S, HangLimit
from trainer.life.health import Action, Health
from trainer.life.heartbeat import Beat, SilenceDetector, explain_hang, find_limit_of_ranks_behind
from trainer.life.straggler import StragglerDetector, find_stragglers

CONFIG = HealthConfig(max_skips=2, spike_sigma=4.0, window=20, max_rollbacks=1)


def health_after(config: HealthConfig, losses: list[float]) -> Health:
    health = Health(config)
    for step, loss in enumerate(losses):
        assert health.judge(step, loss, skipped=False).action is Action.GO
    return health


def steady_losses(count: int = 20) -> list[float]:
    return [2.0 + 0.1 * (i % 2) for i in range(count)]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_skipped_updates_are_counted_until_a_good_one_resets_the_count(loss: float) -> None:
    health = Health(CONFIG)
    assert [health.judge(i, loss, skipped=True).action for i in range(2)] == [Action.WARN, Action.WARN]
    assert health.judge(2, 2.0, skipped=False).action is Action.GO
    actions = [health.judge(3 + i, 2.0, skipped=True).action for i in range(3)]
    assert actions == [Action.WARN, Action.WARN, Action.STOP]


def test_nonfinite_losses_are_handled_by_the_policy() -> None:
    stop = Health(replace(CONFIG, nonfinite="stop")).judge(7, math.nan, skipped=True)
    assert (stop.action, stop.message.startswith("step 7: loss nan")) == (Action.STOP, True)
    assert Health(replace(CONFIG, nonfinite="ignore")).judge(7, math.nan, skipped=False).action is Action.GO


@pytest.mark.parametrize(("policy", "action"), [("ignore", Action.GO), ("warn", Action.WARN), ("stop", Action.STOP)])
def test_a_spike_leads_to_the_action_of_the_policy(policy: str, action: Action) -> None:
    assert health_after(replace(CONFIG, spike=policy), steady_losses()).judge(20, 9.0, skipped=False).action is action


def test_a_little_noise_on_a_constant_loss_is_not_a_spike() -> None:
    assert health_after(CONFIG, [2.0] * 20).judge(20, 2.05, skipped=False).action is Action.GO


def test_a_new_level_becomes_normal() -> None:
    health = health_after(CONFIG, steady_losses())
    actions = [health.judge(20 + i, 9.0, skipped=False).action for i in range(10)]
    assert actions[0] is Action.WARN
    assert actions[-1] is Action.GO


def test_a_rollback_does_not_reset_the_number_of_rollbacks() -> None:
    health = health_after(replace(CONFIG, spike="rollback"), steady_losses())
    saved = health.state()
    assert health.judge(20, 9.0, skipped=False).action is Action.ROLLBACK
    health.load_state(saved)
    health.count_rollback()
    verdict = health.judge(20, 9.0, skipped=False)
    assert verdict.action is Action.STOP
    assert "after 1 rollbacks" in verdict.message


def test_a_spike_without_a_checkpoint_counts_as_a_warning() -> None:
    """Without a checkpoint to roll back to, the new level becomes normal, and the rollbacks are left for later."""
    health = health_after(replace(CONFIG, spike="rollback"), steady_losses())
    actions = []
    for step in range(20, 30):
        actions.append(health.judge(step, 9.0, skipped=False).action)
        health.accept_spike()
    assert (actions[0], actions[-1]) == (Action.ROLLBACK, Action.GO)
    assert health.judge(30, 99.0, skipped=False).action is Action.ROLLBACK


def test_a_resumed_run_judges_like_the_original() -> None:
    first, second = health_after(CONFIG, steady_losses()), Health(CONFIG)
    second.load_state(first.state())
    assert second.judge(20, 9.0, skipped=False) == first.judge(20, 9.0, skipped=False)


SLOW, FINE = [0.10, 0.11, 0.10, 0.20], [0.10, 0.11, 0.10, 0.10]


def report_stragglers(*windows: list[float], window: int = 5) -> list[list[str]]:
    """Return what is reported at the end of each window of equal steps; nothing may be reported inside a window."""
    stragglers = StragglerDetector(["a", "a", "b", "b"], factor=1.3, window=window, windows=3)
    reports = [[str(slow) for slow in stragglers.observe(times)] for times in windows for _ in range(window)]
    assert not any(names for index, names in enumerate(reports) if (index + 1) % window)
    return reports[window - 1 :: window]


def test_a_rank_that_stays_slow_is_reported_once_with_its_host() -> None:
    name = "rank 3 on b works 200 ms per step, 1.90 times the median of 105 ms"
    assert report_stragglers(*[SLOW] * 6) == [[], [], [name], [], [], []]


def test_a_slow_moment_is_not_reported_and_a_relapse_is_reported_again() -> None:
    once = StragglerDetector(["a", "b", "c"], factor=1.3, window=3, windows=1)
    assert [once.observe([0.1, 0.1, 5.0 if i == 1 else 0.1]) for i in range(3)] == [[], [], []]
    assert report_stragglers(SLOW, SLOW, FINE, SLOW, SLOW, FINE) == [[]] * 6
    reports = report_stragglers(*[SLOW] * 3, FINE, *[SLOW] * 3)
    assert [len(names) for names in reports] == [0, 0, 1, 0, 0, 0, 1]


def test_hosts_of_reported_ranks_are_slow_until_the_ranks_are_not() -> None:
    stragglers = StragglerDetector(["a", "a", "b", "b"], factor=1.3, window=1, windows=3)
    slow_hosts = []
    for times in (SLOW, SLOW, SLOW, SLOW, FINE, SLOW):
        stragglers.observe(times)
        slow_hosts.append(stragglers.slow_hosts)
    assert slow_hosts == [set(), set(), {"b"}, {"b"}, set(), set()]


def test_noise_on_changing_ranks_is_not_reported() -> None:
    noise = [[0.3 if rank == window % 4 else 0.1 for rank in range(4)] for window in range(12)]
    assert report_stragglers(*noise) == [[]] * 12


def test_only_ranks_that_delay_the_others_are_reported() -> None:
    """Rank 2 takes 1.5 times the median, which delays nobody while rank 1 takes ten times the median."""
    hosts = ["a", "b", "c", "d", "e"]
    assert [slow.rank for slow in find_stragglers([0.02, 0.20, 0.03, 0.02, 0.02], hosts, 1.3)] == [1]
    assert [slow.rank for slow in find_stragglers([0.02, 0.20, 0.18, 0.02, 0.02], hosts, 1.3)] == [1, 2]
    assert [slow.rank for slow in find_stragglers([0.02, 0.02, 0.03, 0.02, 0.02], hosts, 1.3)] == [2]


def test_a_link_that_makes_nearly_all_of_a_step_a_wait_has_no_straggler() -> None:
    """What remains of each step after the waits differs by more than the factor, and delays nobody."""
    assert find_stragglers([0.02, 0.05, 0.02], ["a", "b", "c"], 1.3, step_s=1.0) == []
    assert [slow.rank for slow in find_stragglers([0.02, 0.15, 0.02], ["a", "b", "c"], 1.3, step_s=1.0)] == [1]
    link = StragglerDetector(["a", "b", "c"], factor=1.3, window=2, windows=2)
    assert [link.observe([0.02, 0.05, 0.02], 1.0) for _ in range(8)] == [[]] * 8


def test_times_of_zero_have_no_straggler() -> None:
    assert find_stragglers([0.0, 0.0], ["a", "b"], 1.3) == []


@pytest.mark.parametrize(("step_s", "expected"), [(0.5, 61.5), (10, 90), (50, 210)])
def test_the_hang_limit_is_long_before_the_first_steps_and_three_steps_and_a_minute_after(
    step_s: float, expected: float
) -> None:
    limit = HangLimit()
    for _ in range(4):
        assert limit.limit_s() == BEFORE_STEPS_S
        limit.add_step(step_s)
    limit.add_step(step_s)
    assert limit.limit_s() == expected


def test_a_given_hang_limit_holds_from_the_first_step() -> None:
    limit = HangLimit(hang_s=7)
    assert limit.limit_s() == BEFORE_STEPS_S
    limit.add_step(0.5)
    assert limit.limit_s() == 7


@pytest.mark.parametrize(("step_s", "expected"), [(None, 1), (0.1, 5), (2, 10), (60, 300)])
def test_after_sigterm_a_rank_has_the_time_of_five_steps(step_s: float | None, expected: float) -> None:
    limit = HangLimit()
    if step_s is not None:
        limit.add_step(step_s)
    assert limit.limit_after_term_s() == expected


def beat(rank: int, count: int, phase: str = "compute", tick: int = 1, limit_s: float = 0.0) -> Beat:
    return Beat(rank, f"n-{rank // 2}", count, 7, phase, tick, limit_s)


def test_the_rank_with_the_fewest_beats_is_behind() -> None:
    text = explain_hang([beat(0, 9), beat(1, 9), beat(2, 8, "data"), beat(3, 9)], [])
    assert text == "behind: rank 2 on n-1 (step 7, data); the furthest is at step 7, compute"


def test_the_network_is_suspected_if_all_ranks_are_at_the_same_place() -> None:
    assert "all 2 ranks are at the same place (step 7, compute)" in explain_hang([beat(0, 9), beat(1, 9)], [])


def test_of_ranks_at_the_same_place_those_outside_the_trainer_are_named() -> None:
    stuck = replace(beat(1, 9), place="model.py:12 in forward")
    text = explain_hang([beat(0, 9), stuck], [])
    place = "rank 1 on n-0 (step 7, compute), at model.py:12 in forward"
    assert text == f"in code outside the trainer: {place}; the others may wait for it"
    assert "check the network" in explain_hang([stuck, replace(stuck, rank=0)], [])


def test_a_rank_waits_as_long_as_the_ranks_behind_it_may_take() -> None:
    beats = [beat(0, 9), beat(1, 8, "data", limit_s=900), beat(2, 8, "data"), beat(3, 9, "save", limit_s=5000)]
    assert find_limit_of_ranks_behind(beats, 9) == 900
    assert find_limit_of_ranks_behind(beats, 8) == 0


def test_a_remote_batch_may_take_longer_than_all_retries_of_its_download() -> None:
    longest_s = sum(remote._RETRY_DELAYS_S) + (len(remote._RETRY_DELAYS_S) + 1) * remote._TIMEOUT_S
    assert longest_s < REMOTE_BATCH_S


def test_silent_ranks_are_named_first_and_the_list_is_limited() -> None:
    beats = [beat(rank, 9) for rank in range(100)]
    text = explain_hang(beats, beats[10:])
    assert text.startswith("silent, because their process or node is dead or stuck: rank 10 on n-5")
    assert text.endswith("and 82 more")


def test_a_rank_whose_tick_stops_is_silent() -> None:
    silence = SilenceDetector()
    assert silence.silent_for(15, [beat(0, 1, tick=1), beat(1, 1, tick=1)], now=100) == []
    assert silence.silent_for(15, [beat(0, 1, tick=9), beat(1, 1, tick=1)], now=110) == []
    assert [b.rank for b in silence.silent_for(15, [beat(0, 1, tick=20), beat(1, 1, tick=1)], now=116)] == [1]
    assert silence.silent_for(15, [beat(0, 1, tick=21), beat(1, 1, tick=2)], now=117) == []
