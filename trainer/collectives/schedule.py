"""The plan of a collective for one rank: which blocks of the tensor it sends, receives and adds in each step.

The tensor is divided into blocks of nearly equal size. A schedule names only blocks and peers, so it depends on the
rank and the number of ranks, not on the tensor: it can be checked for any number of ranks without starting one.
Five properties make a set of schedules, one per rank, correct, and tests hold every algorithm to them:

- All ranks have the same number of steps (a step may be empty), and what a rank sends in a step, its peer receives in
  the same step, in the same order. A rank therefore only waits for messages of the same or earlier steps, so there is
  no deadlock, provided that the backend runs messages between two ranks in the order of their launch, as gloo and NCCL
  do (tested with gloo).
- The sum of a block is completed by one rank, and the other ranks receive copies of it. The result is therefore equal
  on all ranks, bit for bit.
- No step receives into a block that it sends.
- No step adds to a block that this step or an earlier one sends: a rank goes on while what it has sent is on its way.
- A block that is received, and not added, contains whatever the rank itself has contributed to it. So the message can
  only come after the rank has sent its share, and the rank may be ready for it from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Action = Literal["send", "receive", "add"]
"""`receive` overwrites blocks, `add` adds the message to them."""


@dataclass(frozen=True)
class Transfer:
    """A message to or from `peer`: the blocks from `first` up to, but not including, `stop`."""

    action: Action
    peer: int
    first: int
    stop: int

    def place(self, ranks: Sequence[int], first_block: int, width: int) -> Transfer:
        """Return this transfer of a smaller collective as a part of a larger one.

        Rank i of the smaller collective is `ranks[i]` of the larger one. Each of its blocks is `width` blocks there,
        and the first one starts at `first_block`.
        """
        first, stop = (first_block + block * width for block in (self.first, self.stop))
        return replace(self, peer=ranks[self.peer], first=first, stop=stop)


Step = tuple[Transfer, ...]
"""The messages that a rank exchanges at the same time, in the order in which it lists them for a peer."""


@dataclass(frozen=True)
class Schedule:
    """The steps of one rank.

    Large tensors are processed in chunks, each with all blocks and all steps. A chunk starts `chunk_interval` steps
    after the previous one, so that one chunk is added while others are on the wire.
    """

    blocks: int
    steps: tuple[Step, ...]
    chunk_interval: int

    @property
    def chunks_in_flight(self) -> int:
        """The number of chunks that are processed at the same time."""
        return -(-len(self.steps) // self.chunk_interval)


def halve_interval(steps: Sequence[Step]) -> int:
    """Return the chunk interval that keeps two chunks in flight: one on the wire while the other is added.

    It suits algorithms in which every rank sends in every step; more chunks would not make the links busier.
    """
    return max(1, -(-len(steps) // 2))


def check_nodes(ranks: int, ranks_per_node: int) -> None:
    """Raise ValueError unless the ranks can be divided into nodes with this number of ranks each."""
    if ranks_per_node < 1 or ranks % ranks_per_node:
        raise ValueError(f"ranks_per_node is {ranks_per_node}, but must divide the number of ranks, {ranks}")


Span = tuple[int, int]
"""The elements from a start up to, but not including, a stop."""


def split_span(start: int, stop: int, parts: int) -> list[Span]:
    """Return the parts of a span; their sizes differ by at most one element, and may be 0."""
    size = stop - start
    bounds = [start + size * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))


def plan_chunks(elements: int, blocks: int, block_elements: int) -> list[list[Span]]:
    """Return the spans of each block of each chunk, for a chunk that is a contiguous part of the tensor.

    A block of a chunk has at most `block_elements` elements. Neighbouring blocks are contiguous, so a message of
    several blocks is one piece of memory.
    """
    count = max(1, -(-elements // (blocks * block_elements)))
    return [split_span(start, stop, blocks) for start, stop in split_span(0, elements, count)]


def plan_block_chunks(elements: int, blocks: int, block_elements: int) -> list[list[Span]]:
    """Return the spans of each block of each chunk, for blocks that are contiguous parts of the tensor.

    Reduce-scatter and all-gather need it: which elements belong to a rank must not depend on the size of a chunk.
    Messages may only have one block.
    """
    count = max(1, -(-elements // (blocks * block_elements)))
    parts = [split_span(start, stop, count) for start, stop in split_span(0, elements, blocks)]
    return [list(chunk) for chunk in zip(*parts, strict=True)]
