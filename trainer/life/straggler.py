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
    """Looks at whole windows of steps: one slow step is noise, and so is one slow window; a rank has to stay slow."""

    def __init__(self, hosts: Sequence[str], factor: float, window: int = 10, windows: int = 3) -> None:
        self._hosts = hosts
        self._factor = factor
        self._window = window
        self._windows = windows
        self._seen: list[Sequence[float]] = []
        self._slow: dict[int, int] = {}  # in how many windows in a row

    def see(self, work_s: Sequence[float]) -> list[Straggler]:
        """The times of all ranks in one step; at the end of a window, those that have now been slow for long enough."""
        self._seen.append(work_s)
        if len(self._seen) < self._window:
            return []
        found = slower([median(times) for times in zip(*self._seen, strict=True)], self._hosts, self._factor)
        self._seen = []
        self._slow = {straggler.rank: self._slow.get(straggler.rank, 0) + 1 for straggler in found}
        return [straggler for straggler in found if self._slow[straggler.rank] == self._windows]


def slower(work_s: Sequence[float], hosts: Sequence[str], factor: float) -> list[Straggler]:
    """Those that the others wait for. Beside one that is far behind, a little more work than the median is no delay."""
    middle = median(work_s)
    if middle <= 0:
        return []
    behind = (max(work_s) - middle) / 2
    return [
        Straggler(r, hosts[r], t, middle) for r, t in enumerate(work_s) if t > factor * middle and t - middle >= behind
    ]
