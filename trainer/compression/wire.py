"""The collectives that compressed gradients travel by, with a count of the bytes that this rank sends.

The count is that of the algorithms which send least: in an all-gather, every rank passes on all messages but one; in an
all-to-all, it sends all parts but its own; an all-reduce is a reduce-scatter and an all-gather.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


class Wire:
    """The ranks of a group that average their gradients."""

    def __init__(self, group: Any = None) -> None:
        self.rank: int = dist.get_rank(group)
        self.ranks: int = dist.get_world_size(group)
        self.sent_bytes = 0
        """Bytes that this rank has sent since the count was last set to 0."""
        self._group = group

    def all_reduce(self, tensor: Any) -> None:
        """Replace a tensor by its sum over all ranks, which is the same on all of them, bit for bit."""
        dist.all_reduce(tensor, group=self._group)
        self.sent_bytes += count_all_reduce_bytes(_count_bytes(tensor), self.ranks)

    def all_gather(self, message: Any) -> Any:
        """Return the messages of all ranks as rows, in the order of the ranks; all have the same size."""
        rows = message.new_empty(self.ranks * message.numel())
        dist.all_gather_into_tensor(rows, message.flatten(), group=self._group)
        self.sent_bytes += _count_bytes(message) * (self.ranks - 1)
        return rows.view(self.ranks, -1)

    def all_to_all(self, rows: Any) -> Any:
        """Send row r to rank r and return the rows that the ranks have sent to this one, in their order."""
        received = torch.empty_like(rows)
        dist.all_to_all_single(received.view(-1), rows.view(-1), group=self._group)
        self.sent_bytes += _count_bytes(rows) * (self.ranks - 1) // self.ranks
        return received


def count_all_reduce_bytes(size: int, ranks: int) -> int:
    """Return the bytes that each rank sends in an all-reduce of `size` bytes."""
    return 2 * size * (ranks - 1) // ranks


def _count_bytes(tensor: Any) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size
