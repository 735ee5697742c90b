"""A vote of all ranks in every step, read one step later so that no step waits for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from trainer.life.health import Action
from trainer.life.stop import StopReason
from trainer.life.trace_request import TraceRequest
from trainer.world import World

_FLAGS = 7


@dataclass(frozen=True)
class Ballot:
    """The report of one rank about a step."""

    stop: StopReason | None = None
    busy: bool = False
    """Whether a checkpoint is still being written."""
    work_s: float = 0.0
    """Seconds this rank worked in the step, without waiting for others."""
    action: Action = Action.GO
    """This rank's reaction to the loss of a recent step."""
    action_step: int = 0
    """The step that this rank reacts to."""
    trace: TraceRequest | None = None
    """A request for a trace, which only rank 0 receives."""
    step_s: float = 0.0
    """Duration of the last step that was measured, 0 before the first."""


@dataclass(frozen=True)
class VoteResult:
    """The combined reports about a step: the strongest requests, whether any rank is busy, and the longest time."""

    stop: StopReason | None
    busy: bool
    work_s: tuple[float, ...]
    action: Action
    action_step: int
    step_s: float
    trace: TraceRequest | None = None


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
        self._send(ballot)
        return previous

    def decide(self, ballot: Ballot) -> VoteResult:
        """Vote, wait for the result and return it together with the requests of the vote that was under way.

        Only for decisions that cannot be delayed by a step: every rank waits for the slowest one.
        """
        previous = self.drain()
        self._send(ballot)
        current = self.drain()
        assert current is not None  # noqa: S101 - it was sent above
        if previous is None:
            return current
        action, action_step = max((previous.action, previous.action_step), (current.action, current.action_step))
        stop = max(previous.stop or 0, current.stop or 0)
        return replace(
            current,
            stop=StopReason(stop) if stop else None,
            action=action,
            action_step=action_step,
            trace=current.trace or previous.trace,
        )

    def agree_on_stop(self, reason: StopReason | None) -> StopReason | None:
        """Return the strongest stop request of all ranks at once; a vote that is under way stays under way."""
        if self._world.group is None:
            return reason
        strongest = torch.tensor(int(reason or 0))
        dist.all_reduce(strongest, dist.ReduceOp.MAX, group=self._world.group)
        return StopReason(int(strongest)) if strongest else None

    def drain(self) -> VoteResult | None:
        """Wait for the last vote and return its result; every rank calls it at the same step."""
        sent, self._sent = self._sent, None
        if sent is None:
            return None
        if self._work is not None:
            self._work.wait()
            self._work = None
        stop, busy, action, action_step, trace_steps, trace_ranks, step_s, *times = sent.tolist()
        return VoteResult(
            stop=StopReason(int(stop)) if stop else None,
            busy=bool(busy),
            work_s=tuple(times),
            action=Action(int(action)),
            action_step=int(action_step),
            trace=TraceRequest(int(trace_steps), int(trace_ranks)) if trace_steps else None,
            step_s=step_s,
        )

    def _send(self, ballot: Ballot) -> None:
        tensor = torch.zeros(_FLAGS + self._world.size, dtype=torch.float64)
        flags = [float(ballot.stop or 0), float(ballot.busy), float(ballot.action), float(ballot.action_step)]
        flags += [float(ballot.trace.steps), float(ballot.trace.ranks)] if ballot.trace else [0.0, 0.0]
        flags.append(ballot.step_s)
        tensor[:_FLAGS] = torch.tensor(flags, dtype=torch.float64)
        tensor[_FLAGS + self._world.rank] = ballot.work_s
        self._sent = tensor
        if self._world.group is not None:
            self._work = dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._world.group, async_op=True)
