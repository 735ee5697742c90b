"""How long a rank may be silent before it counts as hung."""

from __future__ import annotations

from collections import deque
from statistics import median

# Import, compilation, loading of a checkpoint: minutes are normal, a quarter of an hour is not.
BEFORE_STEPS_S = 900.0
_ENOUGH_STEPS = 5
_LEAST_S = 60.0
_STEPS = 20


class Patience:
    """hang_s is the last word once steps are being made; 0 leaves it to how long they take."""

    def __init__(self, hang_s: float = 0.0) -> None:
        self._hang_s = hang_s
        self._steps: deque[float] = deque(maxlen=50)

    @property
    def steps(self) -> int:
        """Steps seen of late."""
        return len(self._steps)

    @property
    def settling(self) -> bool:
        """The limit may still change from one step to the next by far."""
        return len(self._steps) <= _ENOUGH_STEPS

    def saw_step(self, seconds: float) -> None:
        self._steps.append(seconds)

    def limit_s(self) -> float:
        if self._hang_s and self._steps:
            return self._hang_s
        if len(self._steps) < _ENOUGH_STEPS:
            return max(BEFORE_STEPS_S, self._hang_s)
        return max(_LEAST_S, _STEPS * median(self._steps))

    def after_term_s(self) -> float:
        """A rank that was told to terminate has only as long as torchrun waits: 30 s, if nobody asked for more.

        One that makes no progress in the time of five steps never will, and before the first there is nothing to save.
        """
        return max(5.0, 5 * median(self._steps)) if self._steps else 1.0
