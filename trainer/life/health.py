"""What to do about a loss that is no number, or far above those before it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, pstdev
from typing import Any

from trainer.config.schema import HealthConfig

_ENOUGH = 10  # losses before a mean says anything
_LEAST_SPREAD = 0.01  # of the mean: a loss that stands still has no spread, and any change would be a spike


class Action(Enum):
    GO = "go"
    WARN = "warn"
    ROLLBACK = "rollback"
    STOP = "stop"


@dataclass(frozen=True)
class Verdict:
    action: Action
    message: str = ""


class Health:
    """Fed with the loss over all ranks, so that every rank comes to the same verdict without asking."""

    def __init__(self, config: HealthConfig, scaled: bool = False) -> None:
        """scaled: with a loss scale, single updates that overflow are how the scale finds its place."""
        self._config = config
        self._scaled = scaled
        self._losses: deque[float] = deque(maxlen=config.window)
        self._skips = 0
        self._rollbacks = 0

    def see(self, step: int, loss: float, skipped: bool) -> Verdict:
        if skipped or not math.isfinite(loss):
            return self._not_finite(step, loss)
        self._skips = 0
        verdict = self._spike(step, loss)
        if verdict.action is not Action.ROLLBACK:
            self._losses.append(loss)
        return verdict

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps. Rollbacks are not in it: going back must not make them undone."""
        return {"losses": list(self._losses), "skips": self._skips}

    def load_state(self, state: dict[str, Any]) -> None:
        self._losses = deque(state["losses"], maxlen=self._config.window)
        self._skips = state["skips"]

    def _not_finite(self, step: int, loss: float) -> Verdict:
        self._skips += 1
        what = f"step {step}: loss {loss:g}, and its update has a NaN or an infinity in it"
        if self._config.nonfinite == "stop" and not (self._scaled and math.isfinite(loss)):
            return Verdict(Action.STOP, f"{what} (health.nonfinite=stop)")
        if self._config.nonfinite == "ignore":
            return Verdict(Action.GO)
        if self._skips > self._config.max_skips:
            return Verdict(
                Action.STOP,
                f"{what}; {self._skips} updates in a row (health.max_skips={self._config.max_skips}): "
                "lower optimizer.lr, or look at the data of these steps",
            )
        return Verdict(Action.WARN, f"{what}: skipped, {self._skips} in a row")

    def _spike(self, step: int, loss: float) -> Verdict:
        if self._config.spike == "ignore" or len(self._losses) < _ENOUGH:
            return Verdict(Action.GO)
        mean = fmean(self._losses)
        spread = max(pstdev(self._losses), _LEAST_SPREAD * abs(mean))
        if loss <= mean + self._config.spike_sigma * spread:
            return Verdict(Action.GO)
        what = f"step {step}: loss {loss:g} is {(loss - mean) / spread:.1f} deviations above the mean {mean:g}"
        if self._config.spike == "warn":
            return Verdict(Action.WARN, what)
        if self._config.spike == "stop":
            return Verdict(Action.STOP, f"{what} (health.spike=stop)")
        self._rollbacks += 1
        if self._rollbacks > self._config.max_rollbacks:
            times = self._config.max_rollbacks
            return Verdict(Action.STOP, f"{what}, after {times} rollbacks (health.max_rollbacks={times})")
        return Verdict(Action.ROLLBACK, what)
