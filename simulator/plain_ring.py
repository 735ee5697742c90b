"""Collectives as plain rings."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.system import System


@dataclass(frozen=True)
class Group:
    ranks: int
    per_node: int
    sharing: int = 1


def time_s(op: str, size: float, group: Group, system: System) -> float:
    n = group.ranks
    if n <= 1 or size <= 0:
        return 0.0
    inside = system.intra_gb_s * 1e9 * 0.75
    if group.per_node >= n:
        rate, hops = inside, 3e-6
    else:
        net = (system.inter_gb_s or 25.0) * 1e9 * 0.85
        rate, hops = min(inside, net / group.sharing * (1 if group.per_node > 1 else 1)), 8e-6
    share = {
        "all_reduce": 2 * (n - 1) / n,
        "all_gather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_to_all": (n - 1) / n,
        "send": 1.0,
    }[op]
    nodes = max(1, n // max(1, group.per_node))
    return 12e-6 + hops * nodes**0.5 + share * size / rate
