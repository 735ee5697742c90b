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
