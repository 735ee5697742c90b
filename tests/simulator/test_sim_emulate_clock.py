"""The clock of emulated ranks: overlap with compute, waiting, and agreement with the prediction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import mean

import pytest

from simulator.emulate.clock import Clock, PredictedCosts, Work
from simulator.emulate.scaling import RANKS, predict_scaling
from simulator.job import Job
from simulator.machines.sources import named_machines
from trainer.config.load import load
from trainer.models.shape import shape_of


@dataclass(frozen=True)
class FixedCosts:
    """Costs of a step: 4 s before the first gradient, 2 s while gradients appear, 1 s of update, 1 s per byte sent."""

    slowed: float = 0.0
    wait_s: float = 0.0

    def work(self, ranks: int) -> Work:
        return Work(before_s=4.0, window_s=2.0, after_s=1.0, wait_s=self.wait_s, slowed=self.slowed)

    def all_reduce_s(self, size: float, ranks: int) -> float:
        return size if ranks > 1 else 0.0


@pytest.mark.parametrize(
    ("buckets", "exposed", "hidden"),
    [
        ([], 0, 0),
        # A single bucket is full when backward ends.
        ([3], 3, 0),
        # The first is ready at 5 s and overlaps with compute for 1 s; the second starts at 6 s.
        ([1, 1], 1, 1),
        # The first takes from 5 s to 8 s and overlaps with compute for 1 s; the second waits for it.
        ([3, 3], 5, 1),
        # The first is ready at 5.5 s and takes until 8.5 s.
        ([3, 1], 3.5, 0.5),
    ],
)
def test_full_buckets_overlap_with_backward(buckets: list[int], exposed: float, hidden: float) -> None:
    tick = Clock(FixedCosts(), 4).step(buckets)
    assert (tick.exposed_s, tick.hidden_s, tick.step_s) == pytest.approx((exposed, hidden, 7 + exposed))


def test_traffic_slows_concurrent_compute() -> None:
    # The first bucket overlaps with compute for 1 s. The 0.5 s that this adds to compute end before the second arrives.
    assert Clock(FixedCosts(slowed=0.5), 4).step([1, 1]).exposed_s == pytest.approx(1)
    assert Clock(FixedCosts(slowed=2.0), 4).step([1, 1]).exposed_s == pytest.approx(2)


def test_single_rank_sends_nothing() -> None:
    assert Clock(FixedCosts(), 1).step([3, 3]).step_s == pytest.approx(7)


def test_step_without_jitter_includes_the_expected_wait() -> None:
    tick = Clock(FixedCosts(wait_s=0.25), 4).step([3])
    assert (tick.step_s, tick.wait_s) == pytest.approx((10.25, 0.25))


def test_ranks_wait_for_the_slowest() -> None:
    clock = Clock(FixedCosts(wait_s=0.25), 256, jitter=0.1)
    ticks = [clock.step([3]) for _ in range(100)]
    # The largest of 256 samples lies 2.8 standard deviations above the mean of 6 s of work.
    assert mean(tick.wait_s for tick in ticks) == pytest.approx(2.8 * 0.1 * 6, rel=0.1)
    assert mean(tick.step_s for tick in ticks) == pytest.approx(10 + 2.8 * 0.1 * 6, rel=0.05)
    assert len({tick.slowest for tick in ticks}) > 50
    assert clock.now == pytest.approx(sum(tick.step_s for tick in ticks))


def test_jitter_is_reproducible_by_seed() -> None:
    def step_times(seed: int) -> list[float]:
        clock = Clock(FixedCosts(), 4, jitter=0.1, seed=seed)
        return [clock.step([3]).step_s for _ in range(5)]

    assert step_times(1) == step_times(1) != step_times(2)


def build_job(preset: str, micro: int, share: int, *settings: str) -> tuple[Job, list[int]]:
    """Return a job and the sizes of its gradient buckets: a single bucket for all gradients."""
    config = load(preset, list(settings))
    return Job(config, micro, share), [4 * shape_of(config.model).params]


@pytest.mark.parametrize("instance", ["p5.48xlarge", "p4d.24xlarge"])
@pytest.mark.parametrize(("preset", "micro", "share"), [("tiny-llama", 1, 1), ("tiny-gpt2", 4, 16)])
def test_the_clock_matches_the_prediction(instance: str, preset: str, micro: int, share: int) -> None:
    job, buckets = build_job(preset, micro, share)
    costs = PredictedCosts(job, named_machines(instance))
    for ranks in RANKS:
        assert Clock(costs, ranks).step(buckets).step_s == pytest.approx(costs.prediction(ranks).step_s, rel=0.01)


def test_wait_with_jitter_matches_the_prediction() -> None:
    job, buckets = build_job("tiny-llama", 1, 1)
    costs = PredictedCosts(job, named_machines("p5.48xlarge"))
    work, predicted = costs.work(256), costs.prediction(256)
    clock = Clock(costs, 256, jitter=work.wait_s / (work.before_s + work.window_s) / 3.3)
    assert mean(clock.step(buckets).step_s for _ in range(50)) == pytest.approx(predicted.step_s, rel=0.01)


def test_efficiency_falls_with_more_ranks() -> None:
    job, buckets = build_job("tiny-llama", 1, 1, "batch.size=256")
    rows = predict_scaling(job, named_machines("p5.48xlarge"), buckets, own=256)
    assert [row.ranks for row in rows] == list(RANKS)
    assert rows[0].efficiency == pytest.approx(1)
    assert [row.efficiency for row in rows] == sorted((row.efficiency for row in rows), reverse=True)
    assert [row.communication for row in rows] == sorted(row.communication for row in rows)
    assert rows[0].communication == 0 < rows[-1].communication
    # One rank runs 256 micro-batches in a step; each of 256 ranks runs one, but still pays the fixed cost of a step.
    # That cost is fitted to 2.5 ms, half the work of one sample (Megatron's own is 3.7 ms on an H200).
    assert all(row.shared_efficiency is not None for row in rows)
    assert (rows[-1].shared_efficiency or 0) < 0.7
    assert all(re.search(r" \d+%$", row.bottleneck) for row in rows)


def test_indivisible_batch_has_no_shared_efficiency() -> None:
    job, buckets = build_job("tiny-llama", 2, 2)
    rows = predict_scaling(job, named_machines("p5.48xlarge"), buckets, own=4)
    assert [row.shared_efficiency is None for row in rows] == [False, False, True, True, True]


def test_slow_network_is_named_as_bottleneck() -> None:
    job, _ = build_job("gpt2-124m", 1, 1, "compile.mode=none")
    rows = predict_scaling(job, named_machines("g6.8xlarge"), [25 << 20] * 20, own=16)
    assert rows[-1].bottleneck.startswith("gradients on the network")
    assert rows[0].bottleneck != rows[-1].bottleneck
