"""The ranks that measure together, and how their figures are combined.

Ranks do their own work at the same time, as in training, but never more ranks than there are CPU cores.
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
"""Shorter than a time slice of the scheduler, so that some batches run undisturbed."""
MIN_BATCHES, MAX_BATCHES = 24, 400
"""Number of batches that a figure is taken from."""
QUANTILES = 5
"""A figure is the first of this many quantiles: the fastest fifth is hardly disturbed, whereas the very fastest
samples are luckier than a step of many parts ever is."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Equal on nodes that are containers of one machine and share its cores."""


class Ranks:
    """All ranks of the measurement, seen from this one."""

    def __init__(self, world: World, least_s: float, on_figure: Callable[[int], None] = lambda _: None) -> None:
        """`on_figure` is called on the first rank with the number of each figure that begins."""
        self.world = world
        self._least_s = least_s
        self._on_figure, self._figures = on_figure, 0
        per_core, self._place = _core_sharing(self)
        self.per_core = max(self.all(per_core))
        """Largest number of ranks that share a core."""

    @property
    def device(self) -> torch.device:
        return self.world.device

    def time_alone(self, work: Callable[[], object]) -> float:
        """Return the seconds of a call by a rank with a dedicated core: the faster fifth of batches, mean over ranks.

        Load by other users is not a property of the machine; readers of the profile account for shared cores.
        """
        self._begin()
        turns, seconds = self._turns(), 0.0
        for turn in range(turns):
            self.meet()
            if self._place % turns == turn:
                seconds = self._time_fastest(work)
        return self.mean(seconds)

    def time_together(self, work: Callable[[], object]) -> float:
        """Return the seconds of a call by all ranks together: the faster fifth of batches, mean over ranks."""
        self._begin()
        return self.mean(quantiles(self._samples(work, self._rounds(work)), n=QUANTILES)[0])

    def _begin(self) -> None:
        self._figures += 1
        if self.world.rank == 0:
            self._on_figure(self._figures)

    def _turns(self) -> int:
        if self.device.type == "cuda":
            return 1
        return math.ceil(self.per_core)

    def _time_fastest(self, work: Callable[[], object]) -> float:
        """Time this rank, whatever the others do."""
        work()
        took = min(self._batch(work, 1) for _ in range(3))
        rounds = _clamp(BATCH_S / max(took, 1e-7), 1, 1000)
        count = _clamp(self._least_s / max(rounds * took, 1e-7), MIN_BATCHES, MAX_BATCHES)
        return quantiles([self._batch(work, rounds) for _ in range(count)], n=QUANTILES)[0]

    def _rounds(self, work: Callable[[], object]) -> int:
        work()
        took = self.mean(min(self.timed(work, 1) for _ in range(3)))
        return _clamp(BATCH_S / max(took, 1e-7), 1, 1000)

    def _samples(self, work: Callable[[], object], rounds: int) -> list[float]:
        """Return samples of this rank; all ranks make the same number of calls, so that `work` may be a collective."""
        first = self.mean(self.timed(work, rounds))
        count = _clamp(self._least_s / max(rounds * first, 1e-7), MIN_BATCHES, MAX_BATCHES)
        return [self.timed(work, rounds) for _ in range(count)]

    def timed(self, work: Callable[[], object], rounds: int) -> float:
        """Return the seconds of one of `rounds` calls, which begin when all ranks are ready."""
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
        """Return the value of every rank, on every rank."""
        if self.world.group is None:
            return [value]
        mine = torch.tensor([value], dtype=torch.float64)
        values = [torch.empty_like(mine) for _ in range(self.world.size)]
        dist.all_gather(values, mine, group=self.world.group)
        return [float(value) for value in values]

    def all_objects(self, value: Any) -> list[Any]:
        """Return the object of every rank, on every rank."""
        values = [value] * self.world.size
        if self.world.group is not None:
            dist.all_gather_object(values, value, group=self.world.group)
        return values


def _core_sharing(ranks: Ranks) -> tuple[float, int]:
    """Return the ranks per core of this machine, and this rank's place among the machine's ranks."""
    boot_id, cores, neighbours = BOOT_ID.read_text(), os.sched_getaffinity(0), []
    for rank, (other_id, other_cores) in enumerate(ranks.all_objects((boot_id, cores))):
        if other_id == boot_id:
            neighbours.append(rank)
            cores |= other_cores
    return max(1.0, len(neighbours) * torch.get_num_threads() / len(cores)), neighbours.index(ranks.world.rank)


def _clamp(value: float, low: int, high: int) -> int:
    return int(max(low, min(high, value)))
