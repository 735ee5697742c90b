"""Recursive halving and doubling: few steps, for tensors of any size and any number of ranks.

Let p be the largest power of two that is at most n, the number of ranks. The tensor of S bytes has p blocks.

1. Fold (only if n > p, one step): rank p+i sends its whole tensor to rank i, which adds it. Ranks from p on then wait.
2. Halving, log2(p) steps: in step k, rank r exchanges with rank r xor 2^k. Each has the same range of blocks; the rank
   with bit k clear keeps the lower half, sends the upper half and adds what it receives. The other one does the
   opposite. At the end each rank has the sum of one block.
3. Doubling, log2(p) steps: the same exchanges in reverse order. Each rank sends all blocks that it has complete and
   receives as many, until it has all.
4. Unfold (only if n > p, one step): rank i sends the result to rank p+i.

There are 2 log2(p) steps, and two more if n is not a power of two. A rank sends 2(p-1)/p * S bytes, as in a ring of p;
ranks with a folded partner send S more, and the partner S. The first exchanges, with the largest messages, are between
ranks next to each other, which usually share a node.

Order of summation, the same for every element: first x[i] + x[p+i] for folded ranks, then neighbours, pairs of
neighbours, and so on: ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])). The rounding error grows with
log2(n) instead of n.
"""

from __future__ import annotations

from trainer.collectives.schedule import Schedule, Step, Transfer, halve_interval


def schedule_all_reduce(rank: int, ranks: int) -> Schedule:
    """Return the schedule after which every rank has the sum of all blocks."""
    bits = ranks.bit_length() - 1
    blocks = 1 << bits
    steps: tuple[Step, ...] = _exchanges(rank, bits) if rank < blocks else ((),) * (2 * bits)
    if ranks > blocks:
        fold, unfold = _folding_steps(rank, ranks, blocks)
        steps = (fold, *steps, unfold)
    return Schedule(blocks, steps, halve_interval(steps))


def _exchanges(rank: int, bits: int) -> tuple[Step, ...]:
    first, stop = 0, 1 << bits
    halving: list[Step] = []
    doubling: list[Step] = []
    for k in range(bits):
        peer, middle = rank ^ (1 << k), (first + stop) // 2
        lower, upper = (first, middle), (middle, stop)
        ours, theirs = (upper, lower) if rank >> k & 1 else (lower, upper)
        halving.append((Transfer("send", peer, *theirs), Transfer("add", peer, *ours)))
        doubling.append((Transfer("send", peer, *ours), Transfer("receive", peer, *theirs)))
        first, stop = ours
    return (*halving, *reversed(doubling))


def _folding_steps(rank: int, ranks: int, blocks: int) -> tuple[Step, Step]:
    """Return the first and the last step: a rank without a place in the exchanges hands its tensor to a partner."""
    if rank >= blocks:
        partner = rank - blocks
        return (Transfer("send", partner, 0, blocks),), (Transfer("receive", partner, 0, blocks),)
    partner = rank + blocks
    if partner >= ranks:
        return (), ()
    return (Transfer("add", partner, 0, blocks),), (Transfer("send", partner, 0, blocks),)
