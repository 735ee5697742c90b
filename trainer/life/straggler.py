"""Which ranks are slower than the others, from the time each one worked without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Straggler:
    rank: int
    host: str
    work_s: float
    median_s: float

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.host} works {self.work_s * 1e3:.0f} ms per step, "
            f"{self.work_s / self.median_s:.2f} times the median of {self.median_s * 1e3:.0f} ms"
        )


class Stragglers:
    """Looks at whole windows of steps: one slow step is noise, a slow median is a slow node."""

    def __init__(self, hosts: Sequence[str], factor: float, window: int = 20) -> None:
        self._hosts = hosts
        self._factor = factor
        self._window = window
        self._seen: list[Sequence[float]] = []
        self._slow: set[int] = set()

    def see(self, work_s: Sequence[float]) -> list[Straggler]:
        """The times of all ranks in one step; at the end of a window, the ranks that have become slow in it."""
        self._seen.append(work_s)
        if len(self._seen) < self._window:
            return []
        found = slower([median(times) for times in zip(*self._seen, strict=True)], self._hosts, self._factor)
        self._seen = []
        known, self._slow = self._slow, {straggler.rank for straggler in found}
        return [straggler for straggler in found if straggler.rank not in known]


def slower(work_s: Sequence[float], hosts: Sequence[str], factor: float) -> list[Straggler]:
    middle = median(work_s)
    if middle <= 0:
        return []
    return [Straggler(r, hosts[r], t, middle) for r, t in enumerate(work_s) if t > factor * middle]
