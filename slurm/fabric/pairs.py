"""Which node is the slow one, found by measuring pairs: in two rounds every node meets two others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Pair = tuple[str, str]
# A pair is slow below this share of what the better quarter of the pairs reach; one bad node spoils two pairs.
# Over TCP the processors of the nodes count as well, and who else uses them.
SLOW = {"efa": 0.85, "infiniband": 0.85, "tcp": 0.5}
FEWEST = 3
"""Nodes that it takes to tell which of two is the slow one."""
_QUARTER = 4


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Pairs of neighbours on a ring; pairs of one round share no node, so they run at the same time."""
    if len(nodes) < FEWEST:
        return [[(nodes[0], nodes[1])]] if len(nodes) == FEWEST - 1 else []
    # Each in the order of its nodes, which is the order in which Slurm numbers them within the pair.
    ring = [*zip(nodes, nodes[1:]), (nodes[0], nodes[-1])]  # noqa: B905, RUF007  # the nodes' own Python may be 3.9
    even, odd = ring[0 : len(nodes) - len(nodes) % 2 : 2], ring[1::2]
    # With an odd number of nodes the last pair of the ring meets the first of both rounds.
    left = [ring[-1]] if len(nodes) % 2 else []
    return [part for part in (even, odd, left) if part]


def usual(busbw: Mapping[Pair, float]) -> float:
    """What the better quarter of the pairs reach."""
    return sorted(busbw.values(), reverse=True)[len(busbw) // _QUARTER]


def slow_nodes(slow: Mapping[Pair, bool]) -> list[str]:
    """Nodes all of whose pairs are slow; with fewer than three nodes a pair cannot tell which of its two it is."""
    nodes = list(dict.fromkeys(node for pair in slow for node in pair))
    if len(nodes) < FEWEST:
        return []
    return [node for node in nodes if all(is_slow for pair, is_slow in slow.items() if node in pair)]
