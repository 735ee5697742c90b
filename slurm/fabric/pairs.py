"""Which node is the slow one, found by measuring pairs: in two rounds every node meets two others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Pair = tuple[str, str]
# A pair is slow below this share of what the better quarter of the pairs reach; one bad node spoils two pairs.
SLOW = 0.85
_QUARTER = 4
_FEWEST = 3


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Pairs of neighbours on a ring; pairs of one round share no node, so they run at the same time."""
    if len(nodes) < _FEWEST:
        return [[(nodes[0], nodes[1])]] if len(nodes) == _FEWEST - 1 else []
    ring = [(node, nodes[(index + 1) % len(nodes)]) for index, node in enumerate(nodes)]
    even, odd = ring[0 : len(nodes) - len(nodes) % 2 : 2], ring[1::2]
    # With an odd number of nodes the last pair of the ring meets the first of both rounds.
    left = [ring[-1]] if len(nodes) % 2 else []
    return [part for part in (even, odd, left) if part]


def slow_nodes(busbw: Mapping[Pair, float]) -> list[str]:
    """Nodes all of whose pairs are slow; with fewer than three nodes a pair cannot tell which of its two it is."""
    nodes = list(dict.fromkeys(node for pair in busbw for node in pair))
    if len(nodes) < _FEWEST:
        return []
    bound = SLOW * sorted(busbw.values(), reverse=True)[len(busbw) // _QUARTER]
    return [node for node in nodes if all(speed < bound for pair, speed in busbw.items() if node in pair)]
