"""A clock for each rank: work, gradients that travel beside it, and the wait for the slowest."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.emulate.costs import Costs


@dataclass(frozen=True)
class Tick:
    """One step, in modelled seconds."""

    step_s: float
    exposed_s: float
    """Communication that nothing hides, with what it slows the work beside it by."""
    hidden_s: float
    """Communication beside work."""
    wait_s: float
    """Of a rank for the slowest one, on average."""
    slowest: int
    """The rank that all others waited for."""


class Clock:
    """`jitter` is the standard deviation of a rank's work, as a share of it; None takes what is to be expected."""

    def __init__(self, costs: Costs, ranks: int, jitter: float | None = None, seed: int = 1) -> None:
        self.ranks = ranks
        self.now = 0.0
        self._costs = costs
        self._work = costs.work(ranks)
        self._jitter = jitter
        self._random = random.Random(seed)  # noqa: S311  # no secret

    def step(self, buckets: list[int]) -> Tick:
        """`buckets` are the bytes of each all-reduce, in the order in which backward fills them."""
        work = self._work
        factors = [self._factor() for _ in range(self.ranks)]
        slowest = max(range(self.ranks), key=factors.__getitem__)
        ends = [factor * (work.before_s + work.window_s) for factor in factors]
        sent, busy, hidden = 0.0, 0.0, 0.0
        for share, size in zip(_filled(buckets), buckets, strict=True):
            # An all-reduce begins where its last rank is.
            ready = factors[slowest] * (work.before_s + share * work.window_s)
            begins = max(sent, ready)
            took = self._costs.all_reduce_s(size, self.ranks)
            hidden += max(0.0, min(begins + took, ends[slowest]) - begins)
            sent, busy = begins + took, busy + took
        slowed = work.slowed * hidden
        met = max(ends[slowest] + slowed, sent)
        drawn = ends[slowest] - sum(ends) / self.ranks
        wait = work.wait_s if self._jitter is None else drawn
        step = met + work.after_s + (work.wait_s if self._jitter is None else 0.0)
        self.now += step
        return Tick(step, met - ends[slowest], hidden, wait, slowest)

    def _factor(self) -> float:
        return 1.0 if not self._jitter else max(0.0, self._random.gauss(1.0, self._jitter))


def _filled(buckets: list[int]) -> list[float]:
    """How far backward is when each is full."""
    total = sum(buckets)
    shares, so_far = [], 0
    for size in buckets:
        so_far += size
        shares.append(so_far / total)
    return shares
