"""The modelled clock of an emulated job: each rank's work, overlapping communication, the wait for the slowest."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from simulator.collectives import Group, collective_time_s
from simulator.job import Job
from simulator.machines.sources import MachineSource
from simulator.step.prediction import Prediction, predict

_BACKWARD_SHARE = 2 / 3
"""Share of backward in forward plus backward: gradients of inputs and of weights each take as long as forward."""


@dataclass(frozen=True)
class Work:
    """Seconds of one rank's own work in one step; none of it waits for other ranks."""

    before_s: float
    """Until the first gradients are ready to be sent."""
    window_s: float
    """From then to the end of backward, while gradients travel."""
    after_s: float
    """The optimizer's update."""
    wait_s: float
    """Expected wait for the slowest rank, used if no differences between ranks are drawn."""
    slowed: float = 0.0
    """Seconds by which one second of communication slows the work that runs at the same time."""


class Costs(Protocol):
    """Seconds that the clock advances by."""

    def work(self, ranks: int) -> Work: ...

    def all_reduce_s(self, size: float, ranks: int) -> float:
        """Return the seconds of an all-reduce of `size` bytes over all ranks."""


class PredictedCosts:
    """Costs of a job as the simulator predicts them for its machines."""

    def __init__(self, job: Job, machines: MachineSource) -> None:
        self._job = job
        self._machines = machines

    def prediction(self, ranks: int) -> Prediction:
        machines = self._machines
        return predict(self._job.model, self._job.layout(ranks), machines.system(ranks), machines.rates(ranks))

    def work(self, ranks: int) -> Work:
        parts = self.prediction(ranks).parts
        wait, after = parts.get("jitter", 0.0), parts.get("optimizer", 0.0)
        own = sum(parts.values()) - parts.get("data", 0.0) - wait - after
        passes = own - parts.get("step", 0.0)
        window = _BACKWARD_SHARE * passes / max(1, self._job.layout(ranks).micro_batches)
        return Work(own - window, window, after, wait, self._machines.rates(ranks).slowed)

    def all_reduce_s(self, size: float, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        group = Group(ranks, self._machines.per_node(ranks))
        return self._machines.rates(ranks).links * collective_time_s(
            "all_reduce", size, group, self._machines.system(ranks)
        )


@dataclass(frozen=True)
class Tick:
    """One step, in modelled seconds."""

    step_s: float
    exposed_s: float
    """Communication that compute does not hide, plus the time by which communication slows compute."""
    hidden_s: float
    """Communication at the same time as work."""
    wait_s: float
    """Mean wait of a rank for the slowest."""
    slowest: int
    """The rank that all others waited for."""


class Clock:
    """Advances by one step at a time.

    `jitter` is the standard deviation of a rank's work as a share of it; None uses the expected wait instead.
    """

    def __init__(self, costs: Costs, ranks: int, jitter: float | None = None, seed: int = 1) -> None:
        self.ranks = ranks
        self.now = 0.0
        self._costs = costs
        self._work = costs.work(ranks)
        self._jitter = jitter
        self._random = random.Random(seed)  # noqa: S311  # not used for secrets

    def step(self, buckets: list[int]) -> Tick:
        """Advance by a step; `buckets` are the bytes of each all-reduce, in the order in which backward fills them."""
        work = self._work
        factors = [self._draw_factor() for _ in range(self.ranks)]
        slowest = max(range(self.ranks), key=factors.__getitem__)
        ends = [factor * (work.before_s + work.window_s) for factor in factors]
        sent, hidden = 0.0, 0.0
        for share, size in zip(_backward_shares(buckets), buckets, strict=True):
            # An all-reduce begins when the last rank has its bucket ready.
            ready = factors[slowest] * (work.before_s + share * work.window_s)
            begins = max(sent, ready)
            took = self._costs.all_reduce_s(size, self.ranks)
            hidden += max(0.0, min(begins + took, ends[slowest]) - begins)
            sent = begins + took
        slowed = work.slowed * hidden
        reduced = max(ends[slowest] + slowed, sent)
        drawn = ends[slowest] - sum(ends) / self.ranks
        wait = work.wait_s if self._jitter is None else drawn
        step = reduced + work.after_s + (work.wait_s if self._jitter is None else 0.0)
        self.now += step
        return Tick(step, reduced - ends[slowest], hidden, wait, slowest)

    def _draw_factor(self) -> float:
        return 1.0 if not self._jitter else max(0.0, self._random.gauss(1.0, self._jitter))


def _backward_shares(buckets: list[int]) -> list[float]:
    """Return the share of backward that is done when each bucket is full."""
    total = sum(buckets)
    shares, so_far = [], 0
    for size in buckets:
        so_far += size
        shares.append(so_far / total)
    return shares
