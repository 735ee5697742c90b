"""The reaction of a run to silent corruption: leave the node, or go back to a confirmed checkpoint and continue."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from enum import Enum

from trainer.life.cause import Cause
from trainer.life.outcome import FILE_VARIABLE, Code
from trainer.loop.end import End
from trainer.loop.saves import Saves
from trainer.metrics.recorder import Recorder
from trainer.replay.corruption import Corruption
from trainer.replay.replays import Replays


class Reaction(Enum):
    """What a run does about a corruption."""

    LEAVE = "leave"
    """End, so that the job script requeues the job without the node."""
    ROLL_BACK = "roll back"
    CONTINUE = "continue"
    START_OVER = "start over"
    """End, because nothing is confirmed that this run could go back to."""
    GIVE_UP = "give up"


def choose_reaction(corruption: Corruption, *, in_job: bool, can_roll_back: bool, rollbacks_left: int) -> Reaction:
    """Return how to react; `in_job` means that a job script can requeue the run on other nodes.

    A rank that cannot be named yet stays: the same steps are repeated, and those that differ again show which it is.
    """
    if in_job and not corruption.may_be_decided:
        return Reaction.LEAVE
    if corruption.is_past:
        return Reaction.CONTINUE
    if not can_roll_back:
        return Reaction.START_OVER
    return Reaction.ROLL_BACK if rollbacks_left > 0 else Reaction.GIVE_UP


@dataclass(kw_only=True)
class Corruptions:
    """The corruptions of a run, as one rank sees them; all ranks react in the same way."""

    replays: Replays
    saves: Saves
    recorder: Recorder
    max_rollbacks: int
    _rollbacks: int = 0

    def react(self, corruption: Corruption) -> End | None:
        """Report a corruption, roll back if the run can continue, and return its end if not."""
        self._report(corruption)
        target = self.saves.find_confirmed()
        reaction = choose_reaction(
            corruption,
            in_job=FILE_VARIABLE in os.environ,
            can_roll_back=target is not None,
            rollbacks_left=self.max_rollbacks - self._rollbacks,
        )
        if reaction is Reaction.CONTINUE:
            return None
        self._set_aside()
        if reaction is Reaction.ROLL_BACK and target is not None:
            self._rollbacks += 1
            self.saves.return_to(target)
            return None
        return self._make_end(corruption, reaction)

    def stop(self, corruption: Corruption, end: End) -> End | None:
        """Report a corruption that is found when a person stops the run, and return the end without a save.

        The run is neither requeued nor continued, because somebody asked for its end. None means that the state is
        right again and can be saved.
        """
        self._report(corruption)
        if corruption.is_past:
            return None
        self.saves.find_confirmed()  # lets a save under way finish, so that it is set aside too
        self._set_aside()
        failure = corruption.describe_failure() if corruption.is_decided else None
        return replace(end, reason=f"{end.reason}; not saved: {corruption}", cause=Cause.CORRUPTION, failure=failure)

    def _set_aside(self) -> None:
        steps = self.saves.set_aside_unconfirmed()
        if steps:
            self.recorder.say(f"set aside: the checkpoints of steps {', '.join(map(str, steps))} are not confirmed")

    def _report(self, corruption: Corruption) -> None:
        self.recorder.event(
            "corruption",
            step=corruption.step,
            what=corruption.what,
            ranks=list(corruption.ranks),
            hosts=list(corruption.hosts),
            decided=corruption.is_decided,
            tensors=list(corruption.tensors),
            message=str(corruption),
        )
        if not self.saves.trainer.world.rank:
            print(f"trainer: CORRUPTION {corruption}", file=sys.stderr, flush=True)

    def _make_end(self, corruption: Corruption, reaction: Reaction) -> End:
        reason = f"corruption {corruption}"
        failure = corruption.describe_failure() if corruption.is_decided else None
        if reaction is Reaction.GIVE_UP:
            reason += f", after {self._rollbacks} rollbacks (health.max_rollbacks={self.max_rollbacks})"
            return End(Code.BROKEN, reason, cause=Cause.CORRUPTION, failure=failure)
        return End(Code.REQUEUE, reason, cause=Cause.CORRUPTION, failure=failure)
