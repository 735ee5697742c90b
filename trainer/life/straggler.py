"""Detect ranks that are slower than the others, from the time that each one works without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for; times are seconds of work per step."""

    rank: int
    host: str
    work_s: float
    median_s: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.host} works {self.work_s * 1e3:.0f} ms per step, "
            f"{self.work_s / self.median_s:.2f} times the median of {self.median_s * 1e3:.0f} ms"
        )


# The time of a rank's own work is what remains of a step after its waits. If a slow link makes nearly all of a step a
# wait, the rest is small and says nothing: a rank delays the others only if it works longer by this part of a step.
_MIN_SHARE_OF_STEP = 0.1


class StragglerDetector:
    """A detector of ranks that are slow for several windows of steps in a row; a single slow window is noise."""

    def __init__(self, hosts: Sequence[str], factor: float, window: int = 10, windows: int = 3) -> None:
        self._hosts = hosts
        self._factor = factor
        self._window = window
        self._windows = windows
        self._steps: list[Sequence[float]] = []
        self._step_s: list[float] = []
        self._slow_windows: dict[int, int] = {}  # by rank, the number of slow windows in a row

    @property
    def slow_hosts(self) -> set[str]:
        """The hosts of ranks that were reported and are still slow."""
        return {self._hosts[rank] for rank, windows in self._slow_windows.items() if windows >= self._windows}

    def observe(self, work_s: Sequence[float], step_s: float = 0.0) -> list[Straggler]:
        """Add the times of all ranks in a step; return the ranks that have just been slow for enough windows.

        `step_s` is the time of the whole step with all waits, 0 if it was not measured.
        """
        self._steps.append(work_s)
        self._step_s.append(step_s)
        if len(self._steps) < self._window:
            return []
        typical = [median(times) for times in zip(*self._steps, strict=True)]
        slow = find_stragglers(typical, self._hosts, self._factor, median(self._step_s))
        self._steps, self._step_s = [], []
        self._slow_windows = {rank: self._slow_windows.get(rank, 0) + 1 for rank in (s.rank for s in slow)}
        return [straggler for straggler in slow if self._slow_windows[straggler.rank] == self._windows]


def find_stragglers(
    work_s: Sequence[float], hosts: Sequence[str], factor: float, step_s: float = 0.0
) -> list[Straggler]:
    """Return the ranks that take more than `factor` times the median and delay the others.

    If one rank is far slower, another rank that is only a little slower than the median delays nobody.
    """
    middle = median(work_s)
    if middle <= 0:
        return []
    min_delay = max((max(work_s) - middle) / 2, _MIN_SHARE_OF_STEP * step_s)
    return [
        Straggler(rank, hosts[rank], seconds, middle)
        for rank, seconds in enumerate(work_s)
        if seconds > factor * middle and seconds - middle >= min_delay
    ]
