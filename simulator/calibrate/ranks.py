"""The ranks that measure together: all of them work at the same time, as in training, and their figures are joined."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import quantiles

import torch
import torch.distributed as dist

from trainer.world import World

BATCH_S = 0.002
"""Shorter than what a scheduler gives to a process at once: some batches are then disturbed by nobody."""
LEAST, MOST = 24, 400
"""Batches of a figure."""


class Ranks:
    def __init__(self, world: World, least_s: float) -> None:
        self.world = world
        self._least_s = least_s

    @property
    def device(self) -> torch.device:
        return self.world.device

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one call by a rank that has a core to itself: the quickest batches, mean over the ranks.

        What other users of the machine do to it is no property of it; ranks that share cores are the reader's to count.
        """
        return self.mean(min(self._samples(work, self._rounds(work))))

    def usual(self, work: Callable[[], object]) -> float:
        """Of one call with everything that happens meanwhile: for what waits for other ranks."""
        return self.mean(quantiles(self._samples(work, self._rounds(work)), n=4)[0])

    def _rounds(self, work: Callable[[], object]) -> int:
        work()
        took = self.mean(min(self.timed(work, 1) for _ in range(3)))
        return int(max(1, min(1000, BATCH_S / max(took, 1e-7))))

    def _samples(self, work: Callable[[], object], rounds: int) -> list[float]:
        """Of this rank; every rank makes as many calls, so that `work` may be a collective."""
        first = self.mean(self.timed(work, rounds))
        count = int(max(LEAST, min(MOST, self._least_s / max(rounds * first, 1e-7))))
        return [self.timed(work, rounds) for _ in range(count)]

    def timed(self, work: Callable[[], object], rounds: int) -> float:
        """Seconds of one of `rounds` calls that begin when everybody is there."""
        self.meet()
        began = time.perf_counter()
        for _ in range(rounds):
            work()
        self.finish()
        return (time.perf_counter() - began) / rounds

    def meet(self) -> None:
        self.finish()
        if self.world.group is not None:
            dist.barrier(group=self.world.group)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def mean(self, value: float) -> float:
        return sum(self.all(value)) / self.world.size

    def all(self, value: float) -> list[float]:
        """By rank, on every rank."""
        if self.world.group is None:
            return [value]
        mine = torch.tensor([value], dtype=torch.float64)
        found = [torch.empty_like(mine) for _ in range(self.world.size)]
        dist.all_gather(found, mine, group=self.world.group)
        return [float(one) for one in found]
