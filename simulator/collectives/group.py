"""The ranks of a collective, the operation, and how its launch delays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send"]


@dataclass(frozen=True)
class Group:
    """The ranks that take part in a collective."""

    ranks: int
    per_node: int
    """Ranks of the group per node."""
    sharing: int = 1
    """Groups of this kind that use a node's network cards at the same time."""

    def __post_init__(self) -> None:
        for name in ("ranks", "per_node", "sharing"):
            if getattr(self, name) < 1:
                raise ValueError(f"group.{name}: {getattr(self, name)}; allowed: 1 or more")
        if self.ranks % self.per_node and self.ranks > self.per_node:
            raise ValueError(f"group.per_node: {self.per_node}; allowed: a divisor of the group's {self.ranks} ranks")


SYNCHRONIZED_LAUNCH_US = 3.0
"""Host time per GPU if all kernels start only after the last launch."""
INDEPENDENT_LAUNCH_US = 5.6
"""Host time per GPU if kernels start independently: the host launches the next round while the GPUs work."""
SYNCHRONIZED_GENERATIONS = ("volta", "turing", "ampere", "ada")


@dataclass(frozen=True)
class LaunchOverhead:
    """Time that launching adds when one benchmark process serves all GPUs of a node, one after the other."""

    before_us: float = 0.0
    """Delay before the collective starts."""
    least_us: float = 0.0
    """Host time of one round, which the collective cannot beat."""

    def time_us(self, collective_us: float) -> float:
        return max(self.least_us, self.before_us + collective_us)


PROCESS_PER_GPU = LaunchOverhead()
"""No overhead: each GPU has its own process."""


def single_process_launch(gpus: int, generation: str) -> LaunchOverhead:
    """Return the overhead of one process that launches on all GPUs of a node."""
    if generation in SYNCHRONIZED_GENERATIONS:
        return LaunchOverhead(before_us=SYNCHRONIZED_LAUNCH_US * gpus)
    return LaunchOverhead(least_us=INDEPENDENT_LAUNCH_US * gpus)
