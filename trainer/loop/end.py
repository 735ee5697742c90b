"""How a run ends, as its loop hands it to the session."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.life.cause import Cause
from trainer.life.failure import Failure
from trainer.life.outcome import Code, choose_code
from trainer.life.stop import StopReason


@dataclass(frozen=True)
class End:
    """The end of a run: its exit code, the reason as text, and the stop request or the cause that led to it, if any."""

    code: Code
    reason: str
    stop: StopReason | None = None
    cause: Cause | None = None
    failure: Failure | None = None
    """The rank to blame for the cause, if there is one."""

    @classmethod
    def after_stop(cls, stop: StopReason, note: str, *, can_resume: bool = True) -> End:
        """Return the end of a run that obeyed a stop request; `note` is the text of the stop file, if any.

        `can_resume` is False if the run saves nothing that a requeued one could continue from.
        """
        code, reason = choose_code(stop, can_resume=can_resume), note or stop.text
        if stop.requeue and code is Code.STOPPED:
            reason += "; not requeued: checkpoint.every=never, so the run would start over"
        return cls(code, reason, stop)
