"""Stop requests while steps are long: the ranks agree between micro-batches, and give up the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainer.life.stop import StopListener, StopReason
from trainer.life.vote import Vote
from trainer.step import StepAbandoned

# Short steps are not interrupted: the vote of a step is read in the next one, at no cost. In longer steps the ranks
# wait for each other about once a second, which costs about a millisecond each time.
_LONG_STEP_S = 1.0
_CHECK_INTERVAL_S = 1.0
_STEPS_UNTIL_STOP = 3  # the step of the request, the one whose vote is read, and the one that is under way by then


@dataclass(kw_only=True)
class StopCheck:
    """The checks of one rank for stop requests in long steps. All ranks make the same checks, as they know the same."""

    stop: StopListener
    vote: Vote
    device: torch.device
    step_s: float | None = None
    """Duration of a step on which the ranks agree; None at first, when steps may be long."""
    micro_batches: int = 1
    """Parts of a step between which it can be abandoned."""

    @property
    def is_long(self) -> bool:
        """Whether steps are long enough to be interrupted."""
        return self.step_s is None or self.step_s >= _LONG_STEP_S

    @property
    def delay_s(self) -> float:
        """The longest time from a stop request until all ranks stop training; 0 while it is unknown."""
        if self.step_s is None:
            return 0.0
        if not self.is_long:
            return _STEPS_UNTIL_STOP * self.step_s
        return self.step_s * min(1.0, count_between_checks(self.step_s, self.micro_batches) / self.micro_batches)

    def before_micro_batch(self, index: int, count: int) -> None:
        """Raise StepAbandoned on all ranks if any of them was asked to stop; called before all but the first."""
        self.micro_batches = count
        if self.is_long and index % count_between_checks(self.step_s or math.inf, count) == 0:
            reason = self._agree()
            if reason is not None:
                raise StepAbandoned(reason.text)

    def after_step(self) -> StopReason | None:
        """Return the reason to stop after a long step; a short one is followed by the vote of the next step."""
        return self._agree() if self.is_long else None

    def _agree(self) -> StopReason | None:
        if self.device.type == "cuda":
            # The host is ahead of the GPU: without waiting, it would queue a long step before the request arrives.
            torch.cuda.current_stream(self.device).synchronize()
        return self.vote.agree_on_stop(self.stop.reason)


def count_between_checks(step_s: float, micro_batches: int) -> int:
    """Return the number of micro-batches between two checks, so that about a second passes between them."""
    return max(1, math.ceil(_CHECK_INTERVAL_S * micro_batches / step_s))
