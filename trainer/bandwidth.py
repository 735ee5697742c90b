"""All-reduce bandwidth: which message sizes are measured and what the seconds mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.table import table

KILO = 1024
SIZES = tuple(KILO * 4**step for step in range(9))
"""1 KiB to 64 MiB, each four times the one before."""
LARGE = (128 * KILO**2, KILO**3)
"""Sizes at which the bandwidth of GPU machines is published."""


@dataclass(frozen=True)
class Measured:
    """One all-reduce of `size` bytes over `world` ranks took `seconds`."""

    size: int
    seconds: float
    world: int

    @property
    def algorithm(self) -> float:
        """Bytes per second as the caller sees them."""
        return self.size / self.seconds

    @property
    def bus(self) -> float:
        """Bytes per second on each rank's link: a ring sends every byte 2(n-1)/n times, whatever n is.

        Comparable with the hardware's own figure and between world sizes.
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        return self.algorithm * 2 * (self.world - 1) / self.world


def rounds(size: int) -> int:
    """How often a size is repeated: small messages need many for a steady figure, large ones few."""
    return max(3, min(20, 16 * KILO * KILO // size))


def report(measured: Sequence[Measured]) -> str:
    rows = [(human(m.size), m.seconds * 1e6, m.algorithm / 1e6, m.bus / 1e6) for m in measured]
    return table(("size", "time us", "algorithm MB/s", "bus MB/s"), rows)


def gigabytes(measured: Sequence[Measured]) -> dict[int, float]:
    """GB/s of bus bandwidth by size."""
    return {m.size: m.bus / 1e9 for m in measured}


def human(size: int) -> str:
    kilobytes = size // KILO
    return f"{kilobytes} KB" if kilobytes < KILO else f"{kilobytes // KILO} MB"
