"""Ring: every rank sends to its right neighbour and receives from its left one, in every step.

With n ranks, the tensor of S bytes has n blocks. All indices are modulo n.

Reduce-scatter, n-1 steps. In step k, rank r sends block r-k-1, and adds block r-k-2 from rank r-1. A block thus travels
around the ring and collects one contribution per step; block b starts at rank b+1 and is complete on rank b.

All-gather, n-1 steps. In step k, rank r sends block r-k and receives block r-k-1: the complete blocks travel around
the ring.

All-reduce is the first followed by the second: 2(n-1) steps, and every rank sends 2(n-1)/n * S bytes. No algorithm
without help from the network sends less, so the ring suits large tensors; its many steps make it slow for small ones.

Order of summation of block b: (((x[b+1] + x[b+2]) + x[b+3]) + ...) + x[b]. It depends on the block, so equal
contributions at different places of a tensor may have sums that differ by rounding.
"""

from __future__ import annotations

from trainer.collectives.schedule import Action, Schedule, Step, Transfer, halve_interval


def schedule_all_reduce(rank: int, ranks: int) -> Schedule:
    """Return the schedule after which every rank has the sum of all blocks."""
    steps = (*reduce_scatter_steps(rank, ranks), *all_gather_steps(rank, ranks))
    return Schedule(ranks, steps, halve_interval(steps))


def schedule_reduce_scatter(rank: int, ranks: int) -> Schedule:
    """Return the schedule after which rank r has the sum of block r; its other blocks hold partial sums."""
    steps = reduce_scatter_steps(rank, ranks)
    return Schedule(ranks, steps, halve_interval(steps))


def schedule_all_gather(rank: int, ranks: int) -> Schedule:
    """Return the schedule after which every rank has all blocks, if rank r starts with block r."""
    steps = all_gather_steps(rank, ranks)
    return Schedule(ranks, steps, halve_interval(steps))


def reduce_scatter_steps(rank: int, ranks: int) -> tuple[Step, ...]:
    """Return the steps after which rank r has the sum of block r."""
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    return tuple(
        (_move("send", right, (rank - k - 1) % ranks), _move("add", left, (rank - k - 2) % ranks))
        for k in range(ranks - 1)
    )


def all_gather_steps(rank: int, ranks: int) -> tuple[Step, ...]:
    """Return the steps that copy block r of rank r to all ranks."""
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    return tuple(
        (_move("send", right, (rank - k) % ranks), _move("receive", left, (rank - k - 1) % ranks))
        for k in range(ranks - 1)
    )


def _move(action: Action, peer: int, block: int) -> Transfer:
    return Transfer(action, peer, block, block + 1)
