"""The sum of an all-reduce, from ranks that come one after the other, the last first: the same bits, less memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

from simulator.emulate.chunks import bounds
from simulator.emulate.reduce import Algorithm

Copy = Callable[[Any], Any]


class Fold(Protocol):
    def add(self, rank: int, array: Any) -> None:
        """To be called with every rank once, from the last to 0; keeps no reference to the array."""

    def total(self) -> Any:
        """After rank 0."""


def fold_for(algorithm: Algorithm, ranks: int, per_node: int, copy: Copy) -> Fold:
    if algorithm == "ring":
        return RingFold(ranks, copy)
    if algorithm == "tree":
        return TreeFold(ranks, copy)
    return HierarchicalFold(ranks, min(per_node, ranks), copy)


def held_bytes(algorithm: Algorithm, ranks: int, per_node: int, size: int) -> int:
    """What waits at most, of arrays of `size` bytes."""
    if algorithm == "tree":
        return size * (ranks.bit_length() + 1)
    if algorithm == "ring":
        return size * (ranks + 3) // 2
    inside = min(per_node, ranks)
    return size * (inside + ranks // inside + 6) // 2


class RingFold:
    """Chunk c is summed over ranks c-1, c-2, ..., 0, n-1, ..., c.

    Ranks come downwards, so what a rank has for the chunks up to its own waits until rank 0 was here: half of all
    gradients on average.
    """

    def __init__(self, ranks: int, copy: Copy) -> None:
        self._ranks = ranks
        self._copy = copy
        self._waiting: dict[int, Any] = {}
        self._sum: Any = None

    def add(self, rank: int, array: Any) -> None:
        cuts = bounds(len(array), self._ranks, array.itemsize)
        if self._sum is None:
            self._sum = self._copy(array)
        begun, own = cuts[min(rank + 2, self._ranks)], cuts[rank + 1]
        self._sum[begun:] += array[begun:]
        self._sum[own:begun] = array[own:begun]
        self._waiting[rank] = self._copy(array[:own])

    def total(self) -> Any:
        for rank in sorted(self._waiting, reverse=True):
            part = self._waiting.pop(rank)
            # Chunk 0 has nobody before its last rank.
            fresh = 0 if rank < self._ranks - 1 else bounds(len(self._sum), self._ranks, part.itemsize)[1]
            self._sum[:fresh] = part[:fresh]
            self._sum[fresh : len(part)] += part[fresh:]
        return self._sum


class TreeFold:
    """A rank's sum is complete when all above it in its subtree came: as many are open as the tree has levels."""

    def __init__(self, ranks: int, copy: Copy) -> None:
        self._ranks = ranks
        self._copy = copy
        self._open: dict[int, Any] = {}

    def add(self, rank: int, array: Any) -> None:
        total = self._copy(array)
        distance = 1
        while rank + distance < self._ranks and not rank & distance:
            total += self._open.pop(rank + distance)
            distance *= 2
        self._open[rank] = total

    def total(self) -> Any:
        return self._open[0]


class HierarchicalFold:
    """A ring in each machine, then a ring over machines for each chunk of the first one."""

    def __init__(self, ranks: int, per_node: int, copy: Copy) -> None:
        self._per_node = per_node
        self._copy = copy
        self._rails = [RingFold(ranks // per_node, copy) for _ in range(per_node)]
        self._node = RingFold(per_node, copy)
        self._sum: Any = None

    def add(self, rank: int, array: Any) -> None:
        node, place = divmod(rank, self._per_node)
        self._node.add(place, array)
        if place:
            return
        self._sum = self._node.total()
        self._node = RingFold(self._per_node, self._copy)
        for rail, part in zip(self._rails, self._parts(), strict=True):
            rail.add(node, part)

    def total(self) -> Any:
        for rail, part in zip(self._rails, self._parts(), strict=True):
            part[:] = rail.total()
        return self._sum

    def _parts(self) -> list[Any]:
        cuts = bounds(len(self._sum), self._per_node, self._sum.itemsize)
        return [self._sum[start:stop] for start, stop in pairwise(cuts)]
