"""Comparison of the collectives that ranks are about to start: all of them must be for the same block.

Collectives meet in the order in which ranks start them. If a rank leaves out a layer that the others run, its next
message meets one of another layer. With the same size, both are mixed up without an error; otherwise, ranks fail with a
message of the backend or wait until a timeout. To tell beforehand, ranks exchange what they are about to do, which
takes a small message, and on a GPU the host waits for it. So only the first step of a run is compared, unless
`parallel.check_blocks` is set. Later, an error of a collective says which block it was for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, END = range(4)
_COLLECTIVES = {ALL_GATHER: "all-gather", REDUCE_SCATTER: "reduce-scatter", ALL_REDUCE: "all-reduce"}


class BlockOrderError(RuntimeError):
    """Ranks that were about to mix up the messages of different blocks."""


class BlockOrder:
    """What the ranks of a group are about to do, compared while `is_compared` is set."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.is_compared = False
        self._names, self._device = names, device

    def compare(self, group: Any, action: int, block: int = 0) -> None:
        """Raise an error on all ranks of a group unless they are about to do the same."""
        if group is None or not self.is_compared:
            return
        own = torch.tensor([action, block], device=self._device)
        gathered = own.new_empty(2 * dist.get_world_size(group))
        dist.all_gather_into_tensor(gathered, own, group=group)
        actions = [(action, block) for action, block in gathered.view(-1, 2).tolist()]
        message = describe_difference(actions, dist.get_process_group_ranks(group), self._names)
        if message:
            raise BlockOrderError(message)

    @contextmanager
    def name_errors(self, action: int, block: int) -> Iterator[None]:
        """Add to an error of a collective what it was for."""
        try:
            yield
        except RuntimeError as error:
            error.add_note(
                f"It was the {describe_action(action, block, self._names)}. If other ranks name another block, they "
                "run different layers: set parallel.check_blocks to true to see where they part."
            )
            raise


@dataclass(frozen=True)
class Turn:
    """The place of a block in the order of use."""

    order: BlockOrder
    block: int

    def compare(self, group: Any, action: int) -> None:
        """Raise an error unless all ranks of a group are about to do the same for this block."""
        self.order.compare(group, action, self.block)

    def name_errors(self, action: int) -> AbstractContextManager[None]:
        """Return a context that adds the block to an error of a collective."""
        return self.order.name_errors(action, self.block)


def describe_difference(actions: Sequence[tuple[int, int]], ranks: Sequence[int], names: Sequence[str]) -> str:
    """Return which ranks are about to do what, or nothing if all do the same."""
    if len(set(actions)) == 1:
        return ""
    parts = []
    for action, block in dict.fromkeys(actions):
        alike = [str(rank) for rank, other in zip(ranks, actions, strict=True) if other == (action, block)]
        label = f"rank{'s' if len(alike) > 1 else ''} {', '.join(alike)}"
        parts.append(f"{label}: {describe_action(action, block, names)}")
    return (
        f"ranks run different blocks ({'; '.join(parts)}), but they exchange weights and gradients block by block; "
        "let all ranks call the same layers in the same order, or set parallel.strategy to ddp"
    )


def describe_action(action: int, block: int, names: Sequence[str]) -> str:
    """Return a collective and its block in words."""
    if action == END:
        return "end of the micro-batch"
    return f"{_COLLECTIVES[action]} of block {block} ({names[block]})"
