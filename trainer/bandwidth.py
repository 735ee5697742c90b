"""All-reduce bandwidth: the message sizes to measure, and the conversion of times to rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.table import table

KILO = 1024
SIZES = tuple(KILO * 4**step for step in range(9))
"""Message sizes in bytes, 1 KiB to 64 MiB, each four times the previous one."""
LARGE = (128 * KILO**2, KILO**3)
"""Message sizes in bytes at which the bandwidth of GPU machines is published."""


@dataclass(frozen=True)
class AllReduceTime:
    """The time that an all-reduce of `size` bytes over `world` ranks took."""

    size: int
    seconds: float
    world: int

    @property
    def algorithm(self) -> float:
        """Bytes per second as the caller sees them."""
        return self.size / self.seconds

    @property
    def bus(self) -> float:
        """Bytes per second on each rank's link: a ring of n ranks sends every byte 2(n-1)/n times.

        Comparable with the hardware's own figure and between world sizes.
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        return self.algorithm * 2 * (self.world - 1) / self.world


def count_rounds(size: int) -> int:
    """Return how often a size is repeated: small messages need many rounds for a stable figure, large ones few."""
    return max(3, min(20, 16 * KILO * KILO // size))


def format_report(times: Sequence[AllReduceTime]) -> str:
    """Return a table of the times and rates by size."""
    rows = [(format_size(t.size), t.seconds * 1e6, t.algorithm / 1e6, t.bus / 1e6) for t in times]
    return table(("size", "time us", "algorithm MB/s", "bus MB/s"), rows)


def bus_gigabytes(times: Sequence[AllReduceTime]) -> dict[int, float]:
    """Return the bus bandwidth in GB/s by size."""
    return {time.size: time.bus / 1e9 for time in times}


def format_size(size: int) -> str:
    """Return a message size in KB or MB."""
    kilobytes = size // KILO
    return f"{kilobytes} KB" if kilobytes < KILO else f"{kilobytes // KILO} MB"
