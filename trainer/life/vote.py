"""What all ranks know of each other: started in one step, read in the next, so that no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.life.reason import Reason
from trainer.world import World

_FLAGS = 2


@dataclass(frozen=True)
class Ballot:
    """What one rank has to say about a step."""

    stop: Reason | None = None
    busy: bool = False  # a checkpoint is still being written
    work_s: float = 0.0  # time this rank worked in the step, without waiting for others


@dataclass(frozen=True)
class Agreed:
    """The largest of every rank's word: the same on all of them."""

    stop: Reason | None
    busy: bool
    work_s: tuple[float, ...]


class Vote:
    """One small all-reduce (MAX) on the control group per step.

    Each rank has a slot of its own for its time, zero on all others, so that MAX gathers the times too.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: torch.Tensor | None = None
        self._work: Any = None

    def exchange(self, mine: Ballot) -> Agreed | None:
        """Cast this step's ballot; get what was agreed on the step before, None in the first."""
        before = self.drain()
        tensor = torch.zeros(_FLAGS + self._world.size, dtype=torch.float64)
        tensor[0], tensor[1] = float(mine.stop or 0), float(mine.busy)
        tensor[_FLAGS + self._world.rank] = mine.work_s
        self._sent = tensor
        if self._world.group is not None:
            self._work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._world.group, async_op=True)
        return before

    def drain(self) -> Agreed | None:
        """What was agreed on last, waiting for it; every rank calls it at the same step."""
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        if self._work is not None:
            self._work.wait()
            self._work = None
        stop, busy, *times = sent.tolist()
        return Agreed(Reason(int(stop)) if stop else None, bool(busy), tuple(times))
