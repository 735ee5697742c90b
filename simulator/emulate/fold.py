"""Sum an all-reduce from ranks that arrive one by one, the last rank first: bit-identical, with less memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

from simulator.emulate.all_reduce import Algorithm, chunk_bounds

Copy = Callable[[Any], Any]


class Fold(Protocol):
    """A sum that is built rank by rank."""

    def add(self, rank: int, array: Any) -> None:
        """Add a rank's array without keeping a reference; called once for each rank, from the last to 0."""

    def total(self) -> Any:
        """Return the sum; called after rank 0."""


def create_fold(algorithm: Algorithm, ranks: int, per_node: int, copy: Copy) -> Fold:
    """Return an empty sum that adds in the order of the algorithm."""
    if algorithm == "ring":
        return RingFold(ranks, copy)
    if algorithm == "tree":
        return TreeFold(ranks, copy)
    return HierarchicalFold(ranks, min(per_node, ranks), copy)


def held_bytes(algorithm: Algorithm, ranks: int, per_node: int, size: int) -> int:
    """Return the most memory that a fold of arrays of `size` bytes holds at a time."""
    if algorithm == "tree":
        return size * (ranks.bit_length() + 1)
    if algorithm == "ring":
        return size * (ranks + 3) // 2
    inside = min(per_node, ranks)
    return size * (inside + ranks // inside + 6) // 2


class RingFold:
    """Sums chunk c over ranks c-1, c-2, ..., 0, n-1, ..., c.

    Ranks arrive in descending order, so a rank's values for the chunks up to its own wait until rank 0 has arrived:
    half of all gradients on average.
    """

    def __init__(self, ranks: int, copy: Copy) -> None:
        self._ranks = ranks
        self._copy = copy
        self._waiting: dict[int, Any] = {}
        self._sum: Any = None

    def add(self, rank: int, array: Any) -> None:
        cuts = chunk_bounds(len(array), self._ranks, array.itemsize)
        if self._sum is None:
            self._sum = self._copy(array)
        begun, own = cuts[min(rank + 2, self._ranks)], cuts[rank + 1]
        self._sum[begun:] += array[begun:]
        self._sum[own:begun] = array[own:begun]
        self._waiting[rank] = self._copy(array[:own])

    def total(self) -> Any:
        for rank in sorted(self._waiting, reverse=True):
            part = self._waiting.pop(rank)
            # Chunk 0 starts at its last rank, so there is nothing to add to yet.
            fresh = 0 if rank < self._ranks - 1 else chunk_bounds(len(self._sum), self._ranks, part.itemsize)[1]
            self._sum[:fresh] = part[:fresh]
            self._sum[fresh : len(part)] += part[fresh:]
        return self._sum


class TreeFold:
    """Sums along a binary tree; a partial sum is open for each level of the tree at most."""

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
    """Sums along a ring in each machine, then along a ring over machines for each chunk of the first ring."""

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
        cuts = chunk_bounds(len(self._sum), self._per_node, self._sum.itemsize)
        return [self._sum[start:stop] for start, stop in pairwise(cuts)]
