"""Who takes part in a collective, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send"]


@dataclass(frozen=True)
class Group:
    ranks: int
    per_node: int
    """How many of them sit in one node."""
    sharing: int = 1
    """Groups like this one that use the same node's network cards at the same time."""

    def __post_init__(self) -> None:
        for name in ("ranks", "per_node", "sharing"):
            if getattr(self, name) < 1:
                raise ValueError(f"group.{name}: {getattr(self, name)}; allowed: 1 or more")
        if self.ranks % self.per_node and self.ranks > self.per_node:
            raise ValueError(f"group.per_node: {self.per_node}; allowed: a divisor of the group's {self.ranks} ranks")


EACH_US = 3.0
"""Of each GPU, before the kernels of all of them begin together."""
EACH_APART_US = 5.6
"""Of each GPU where none waits for the others: the host is done with the next round while they work on this one."""
TOGETHER = ("volta", "turing", "ampere", "ada")


@dataclass(frozen=True)
class LaunchOverhead:
    before_us: float = 0.0
    least_us: float = 0.0
    """The host's own time of one round: the GPUs cannot be quicker."""

    def time_us(self, collective_us: float) -> float:
        return max(self.least_us, self.before_us + collective_us)


PROCESS_PER_GPU = LaunchOverhead()
"""One process for each GPU."""


def single_process_launch(gpus: int, generation: str) -> LaunchOverhead:
    if generation in TOGETHER:
        return LaunchOverhead(before_us=EACH_US * gpus)
    return LaunchOverhead(least_us=EACH_APART_US * gpus)
