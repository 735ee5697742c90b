"""The ranks that measure together, and how their figures are joined.

Work of their own they do at the same time, as in training, but never more of them than there are cores.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
import torch.distributed as dist

from trainer.world import World

BATCH_S = 0.002
"""Shorter than what a scheduler gives to a process at once: some batches are then disturbed by nobody."""
LEAST, MOST = 24, 400
"""Batches of a figure."""
QUICK = 5
"""One of so many is hardly disturbed. The very quickest are luckier than a step of many parts ever is."""
KERNEL = Path("/proc/sys/kernel/random/boot_id")
"""The same for nodes that are containers of one machine: they share its cores."""


class Ranks:
    def __init__(self, world: World, least_s: float, on_figure: Callable[[int], None] = lambda _: None) -> None:
        """`on_figure` hears on the first rank which figure begins: all of them take a while."""
        self.world = world
        self._least_s = least_s
        self._on_figure, self._figures = on_figure, 0
        per_core, self._place = _sharing(self)
        self.per_core = max(self.all(per_core))
        """Ranks that share a core, where most do."""

    @property
    def device(self) -> torch.device:
        return self.world.device

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one call by a rank that has a core to itself: the quicker fifth of batches, mean over the ranks.

        What other users of the machine do to it is no property of it; ranks that share cores are the reader's to count.
        """
        self._begin()
        turns, found = self._turns(), 0.0
        for turn in range(turns):
            self.meet()
            if self._place % turns == turn:
                found = self._quick(work)
        return self.mean(found)

    def usual(self, work: Callable[[], object]) -> float:
        """Of one call by all ranks together, likewise."""
        self._begin()
        return self.mean(quantiles(self._samples(work, self._rounds(work)), n=QUICK)[0])

    def _begin(self) -> None:
        self._figures += 1
        if self.world.rank == 0:
            self._on_figure(self._figures)

    def _turns(self) -> int:
        if self.device.type == "cuda":
            return 1
        return math.ceil(self.per_core)

    def _quick(self, work: Callable[[], object]) -> float:
        """By this rank, whatever the others do."""
        work()
        took = min(self._batch(work, 1) for _ in range(3))
        rounds = _whole(BATCH_S / max(took, 1e-7), 1, 1000)
        count = _whole(self._least_s / max(rounds * took, 1e-7), LEAST, MOST)
        return quantiles([self._batch(work, rounds) for _ in range(count)], n=QUICK)[0]

    def _rounds(self, work: Callable[[], object]) -> int:
        work()
        took = self.mean(min(self.timed(work, 1) for _ in range(3)))
        return _whole(BATCH_S / max(took, 1e-7), 1, 1000)

    def _samples(self, work: Callable[[], object], rounds: int) -> list[float]:
        """Of this rank; every rank makes as many calls, so that `work` may be a collective."""
        first = self.mean(self.timed(work, rounds))
        count = _whole(self._least_s / max(rounds * first, 1e-7), LEAST, MOST)
        return [self.timed(work, rounds) for _ in range(count)]

    def timed(self, work: Callable[[], object], rounds: int) -> float:
        """Seconds of one of `rounds` calls that begin when everybody is there."""
        self.meet()
        return self._batch(work, rounds)

    def _batch(self, work: Callable[[], object], rounds: int) -> float:
        self.finish()
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

    def gathered(self, value: Any) -> list[Any]:
        """Likewise, of anything."""
        found = [value] * self.world.size
        if self.world.group is not None:
            dist.all_gather_object(found, value, group=self.world.group)
        return found


def _sharing(ranks: Ranks) -> tuple[float, int]:
    """Ranks to a core of this machine, and which of its ranks this one is."""
    kernel, cores, found = KERNEL.read_text(), os.sched_getaffinity(0), []
    for rank, (theirs, of_theirs) in enumerate(ranks.gathered((kernel, cores))):
        if theirs == kernel:
            found.append(rank)
            cores |= of_theirs
    return max(1.0, len(found) * torch.get_num_threads() / len(cores)), found.index(ranks.world.rank)


def _whole(value: float, low: int, high: int) -> int:
    return int(max(low, min(high, value)))
