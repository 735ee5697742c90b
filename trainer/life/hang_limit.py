"""The time that a rank may spend without progress before it counts as hung."""

from __future__ import annotations

from collections import deque
from statistics import median

# Imports, compilation and loading a checkpoint normally take minutes, but not a quarter of an hour.
BEFORE_STEPS_S = 900.0
# Longer than all retries of a download (trainer/data/remote.py), which report a server that does not answer.
REMOTE_BATCH_S = 900.0
_ENOUGH_STEPS = 5
# Idle GPUs cost money, so the limit grows slowly with the step time: 210 s for steps of 50 s. The fixed part covers
# what does not grow with it, such as a shared filesystem that stalls.
_FIXED_LIMIT_S = 60.0
_LIMIT_IN_STEPS = 3
_TERM_LIMIT_IN_STEPS = 5
_MIN_TERM_LIMIT_S = 5.0
_TERM_LIMIT_BEFORE_STEPS_S = 1.0


class HangLimit:
    """The time limit of a step: `hang_s` from the first step on, or derived from recent steps if `hang_s` is 0."""

    def __init__(self, hang_s: float = 0.0) -> None:
        self._hang_s = hang_s
        self._step_times: deque[float] = deque(maxlen=50)

    @property
    def step_count(self) -> int:
        """The number of recent steps that the limit is derived from."""
        return len(self._step_times)

    @property
    def is_unstable(self) -> bool:
        """Whether the limit may still change a lot from one step to the next."""
        return len(self._step_times) <= _ENOUGH_STEPS

    def add_step(self, seconds: float) -> None:
        """Add the duration of a step."""
        self._step_times.append(seconds)

    def limit_s(self) -> float:
        """Return the seconds without progress after which a rank counts as hung."""
        if self._hang_s and self._step_times:
            return self._hang_s
        if len(self._step_times) < _ENOUGH_STEPS:
            return max(BEFORE_STEPS_S, self._hang_s)
        return _FIXED_LIMIT_S + _LIMIT_IN_STEPS * median(self._step_times)

    def limit_after_term_s(self) -> float:
        """Return the seconds without progress after which a rank that received SIGTERM gives up.

        torchrun kills it after a while, 30 s by default. A rank that has made no progress for the time of five steps
        will not make any, and before the first step there is nothing to save.
        """
        if not self._step_times:
            return _TERM_LIMIT_BEFORE_STEPS_S
        return max(_MIN_TERM_LIMIT_S, _TERM_LIMIT_IN_STEPS * median(self._step_times))
