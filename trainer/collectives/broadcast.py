"""Broadcast with a binomial tree: the number of ranks that have the tensor doubles in every step.

Ranks are counted from the root: v = (rank - root) modulo n. In step k, every v below 2^k has the tensor and sends it to
v + 2^k, if that rank exists. There are ceil(log2(n)) steps. The root sends the S bytes of the tensor in each of them,
the other ranks less often; half of the ranks send nothing. Chunks follow each other at an interval of one step, so
ranks forward the first chunk while the root sends the next.

Nothing is summed: all ranks get the root's bits.
"""

from __future__ import annotations

from trainer.collectives.schedule import Schedule, Step, Transfer


def schedule_broadcast(rank: int, ranks: int, root: int) -> Schedule:
    """Return the schedule after which every rank has the root's tensor."""
    distance = (rank - root) % ranks
    steps: list[Step] = []
    for k in range((ranks - 1).bit_length()):
        owners = 1 << k
        if distance < owners and distance + owners < ranks:
            steps.append((Transfer("send", (rank + owners) % ranks, 0, 1),))
        elif owners <= distance < 2 * owners:
            steps.append((Transfer("receive", (rank - owners) % ranks, 0, 1),))
        else:
            steps.append(())
    return Schedule(1, tuple(steps), chunk_interval=1)
