"""A vote of all ranks in every step, read one step later so that no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.life.stop import StopReason
from trainer.world import World

_FLAGS = 2


@dataclass(frozen=True)
class Ballot:
    """The report of one rank about a step."""

    stop: StopReason | None = None
    busy: bool = False
    """Whether a checkpoint is still being written."""
    work_s: float = 0.0
    """Seconds this rank worked in the step, without waiting for others."""


@dataclass(frozen=True)
class VoteResult:
    """The combined reports about a step: the strongest stop reason, whether any rank is busy, and the rank times."""

    stop: StopReason | None
    busy: bool
    work_s: tuple[float, ...]


class Vote:
    """One small all-reduce (MAX) on the control group per step.

    Each rank puts its time into its own slot, which is zero on all other ranks, so that MAX also gathers the times.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: torch.Tensor | None = None
        self._work: Any = None

    def exchange(self, ballot: Ballot) -> VoteResult | None:
        """Start the vote of this step and return the result of the previous one; None in the first step."""
        previous = self.drain()
        tensor = torch.zeros(_FLAGS + self._world.size, dtype=torch.float64)
        tensor[0], tensor[1] = float(ballot.stop or 0), float(ballot.busy)
        tensor[_FLAGS + self._world.rank] = ballot.work_s
        self._sent = tensor
        if self._world.group is not None:
            self._work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._world.group, async_op=True)
        return previous

    def drain(self) -> VoteResult | None:
        """Wait for the last vote and return its result; every rank calls it at the same step."""
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        if self._work is not None:
            self._work.wait()
            self._work = None
        stop, busy, *times = sent.tolist()
        return VoteResult(StopReason(int(stop)) if stop else None, bool(busy), tuple(times))
