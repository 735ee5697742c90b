"""Decide how to react to a loss that is NaN, infinite, or far above recent losses."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean, pstdev
from typing import Any

from trainer.config.schema import HealthConfig

_MIN_LOSSES = 10  # with fewer, the mean and the deviation are too uncertain to detect a spike
# Smallest deviation, relative to the mean: without it, any change of a constant loss would count as a spike.
_MIN_RELATIVE_DEVIATION = 0.01


class Action(IntEnum):
    """The reaction to a step's loss, ordered so that ranks can agree on the strongest."""

    GO = 0
    WARN = 1
    ROLLBACK = 2
    STOP = 3


@dataclass(frozen=True)
class Verdict:
    """The action to take after a step, and a message unless the step is healthy."""

    action: Action
    message: str = ""


class Health:
    """A judge of each step's loss, which is the mean over all ranks.

    On several axes of ranks, the means may differ in the last bit. So the ranks vote on verdicts that change the course
    of the run.
    """

    def __init__(self, config: HealthConfig, scaled: bool = False) -> None:
        """Start without history; `scaled` means that a loss scale is used, which makes an update overflow at times."""
        self._config = config
        self._scaled = scaled
        self._losses: deque[float] = deque(maxlen=config.window)
        self._skips = 0
        self._rollbacks = 0
        self._spike: float | None = None
        """The loss of a spike that asks for a rollback, until the run has rolled back or goes on without."""

    def judge(self, step: int, loss: float, skipped: bool) -> Verdict:
        """Return how to react to a step with this loss; `skipped` means that its update was not applied."""
        if skipped or not math.isfinite(loss):
            return self._judge_nonfinite(step, loss)
        self._skips = 0
        verdict = self._judge_spike(step, loss)
        if verdict.action is Action.ROLLBACK:
            self._spike = loss
        else:
            self._losses.append(loss)
        return verdict

    def count_rollback(self) -> None:
        """Count a rollback. All ranks do, also those whose own verdict was another one."""
        self._rollbacks += 1
        self._spike = None

    def accept_spike(self) -> None:
        """Treat the spike as a warning, because there is no checkpoint to roll back to."""
        if self._spike is not None:
            self._losses.append(self._spike)
        self._spike = None

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the number of rollbacks, which a rollback would reset."""
        return {"losses": list(self._losses), "skips": self._skips}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state that `state` returned."""
        self._losses = deque(state["losses"], maxlen=self._config.window)
        self._skips = state["skips"]

    def _judge_nonfinite(self, step: int, loss: float) -> Verdict:
        self._skips += 1
        finding = f"step {step}: loss {loss:g}, its update contains a NaN or an infinity"
        if self._config.nonfinite == "stop" and not (self._scaled and math.isfinite(loss)):
            return Verdict(Action.STOP, f"{finding} (health.nonfinite=stop)")
        if self._config.nonfinite == "ignore":
            return Verdict(Action.GO)
        if self._skips > self._config.max_skips:
            return Verdict(
                Action.STOP,
                f"{finding}; {self._skips} updates in a row (health.max_skips={self._config.max_skips}): "
                "lower optimizer.lr, or check the data of these steps",
            )
        return Verdict(Action.WARN, f"{finding}: skipped, {self._skips} in a row")

    def _judge_spike(self, step: int, loss: float) -> Verdict:
        if self._config.spike == "ignore" or len(self._losses) < _MIN_LOSSES:
            return Verdict(Action.GO)
        mean = fmean(self._losses)
        deviation = max(pstdev(self._losses), _MIN_RELATIVE_DEVIATION * abs(mean))
        if loss <= mean + self._config.spike_sigma * deviation:
            return Verdict(Action.GO)
        finding = f"step {step}: loss {loss:g} is {(loss - mean) / deviation:.1f} deviations above the mean {mean:g}"
        if self._config.spike == "warn":
            return Verdict(Action.WARN, finding)
        if self._config.spike == "stop":
            return Verdict(Action.STOP, f"{finding} (health.spike=stop)")
        if self._rollbacks >= self._config.max_rollbacks:
            limit = self._config.max_rollbacks
            return Verdict(Action.STOP, f"{finding}, after {limit} rollbacks (health.max_rollbacks={limit})")
        return Verdict(Action.ROLLBACK, finding)
