"""Where the parameters of a block lie in its flat tensors, if ranks share the rows of each of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Part:
    """The place of a parameter: `size` values of each rank, from `start` on.

    Collectives see a row of values for each rank. A rank has `rows` rows of the parameter. The last ranks have fewer,
    or none, if their number does not divide the rows; what they lack is padding, because collectives need the same size
    from all ranks.
    """

    shape: tuple[int, ...]
    rows: int
    start: int
    size: int

    def slice_rows(self, rank: int) -> slice:
        """Return the rows of a rank."""
        count = self.shape[0]
        return slice(min(rank * self.rows, count), min((rank + 1) * self.rows, count))

    def view_shard(self, shard: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the rows of a rank in its flat tensor."""
        rows = self.slice_rows(rank)
        shape = (rows.stop - rows.start, *self.shape[1:])
        return shard[self.start : self.start + math.prod(shape)].view(shape)

    def view_whole(self, whole: torch.Tensor, ranks: int) -> torch.Tensor:
        """Return the parameter in a flat tensor in which the shares of all ranks follow each other."""
        begin = ranks * self.start
        return whole[begin : begin + math.prod(self.shape)].view(self.shape)

    def view_columns(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the shares of all ranks in a tensor that has a row for each rank."""
        return rows[:, self.start : self.start + self.size]

    def view_shares(self, whole: torch.Tensor, ranks: int) -> torch.Tensor:
        """Return the shares of all ranks, a row for each of them, in a flat tensor in which they follow each other."""
        begin = ranks * self.start
        return whole[begin : begin + ranks * self.size].view(ranks, self.size)

    def pair_rows(self, rows: torch.Tensor, values: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Divide the values of a whole parameter among ranks: return pairs of equal size, a place and its values.

        `rows` has a row for each rank. Ranks with all of their rows are one pair, the rank with fewer is another.
        """
        places, flat = self.view_columns(rows), values.reshape(-1)
        full = flat.numel() // self.size
        pairs = [(places[:full], flat[: full * self.size].view(full, self.size))]
        remaining = flat[full * self.size :]
        return [*pairs, (places[full, : remaining.numel()], remaining)] if remaining.numel() else pairs


def plan_parts(shapes: Iterable[Sequence[int]], ranks: int, align: int = 1) -> list[Part]:
    """Place parameters one after the other; the first ranks have ceil(rows / ranks) rows of each.

    Each of them starts at a multiple of `align` values.
    """
    parts, start = [], 0
    for shape in shapes:
        rows = -(-shape[0] // ranks)
        size = rows * math.prod(shape[1:])
        parts.append(Part(tuple(shape), rows, start, size))
        start += _round_up(size, align)
    return parts


def count_values(parts: Sequence[Part], align: int = 1) -> int:
    """Return the values of one rank, including padding."""
    return _round_up(parts[-1].start + parts[-1].size, align) if parts else 0


def is_padded(parts: Sequence[Part], ranks: int) -> bool:
    """Return whether ranks send values that belong to no parameter."""
    return count_values(parts) * ranks > sum(math.prod(part.shape) for part in parts)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
