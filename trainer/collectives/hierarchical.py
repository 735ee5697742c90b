"""Hierarchical: reduce inside each node first, so that links between nodes carry only a share of the tensor.

With g ranks per node and N nodes, rank r is number r % g of node r // g. The tensor of S bytes has g parts of N blocks.

1. Reduce-scatter inside each node, a ring over its g ranks, g-1 steps: number i gets the node's sum of part i.
2. All-reduce across nodes, 2(N-1) steps: the ranks with number i, one of each node, form a ring of N and sum part i.
   The g rings work at the same time.
3. All-gather inside each node, g-1 steps: number i sends part i around the node's ring.

That is 2(g-1) + 2(N-1) steps instead of the 2(gN-1) of one ring. A rank sends 2(g-1)/g * S bytes inside its node, and
only 2(N-1)/N * S/g bytes to another one, where one ring over all ranks sends nearly 2S bytes from each node to the
next. If the ranks of a node share one link, together they send 2(N-1)/N * S bytes over it.

Order of summation of block b of part i: inside each node ((x[i+1] + x[i+2]) + ...) + x[i], by number in the node and
modulo g, then over the sums y of the nodes ((y[b+1] + y[b+2]) + ...) + y[b], modulo N.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.collectives import ring
from trainer.collectives.schedule import Schedule, Step, check_nodes


def schedule_all_reduce(rank: int, ranks: int, ranks_per_node: int) -> Schedule:
    """Return the schedule after which every rank has the sum of all blocks.

    Ranks of a node must be consecutive, and all nodes must have the same number of ranks.
    """
    check_nodes(ranks, ranks_per_node)
    nodes = ranks // ranks_per_node
    node, number = divmod(rank, ranks_per_node)
    same_node = range(node * ranks_per_node, (node + 1) * ranks_per_node)
    same_number = range(number, ranks, ranks_per_node)
    steps = (
        *_place(ring.reduce_scatter_steps(number, ranks_per_node), same_node, 0, nodes),
        *_place(ring.schedule_all_reduce(node, nodes).steps, same_number, number * nodes, 1),
        *_place(ring.all_gather_steps(number, ranks_per_node), same_node, 0, nodes),
    )
    return Schedule(ranks, steps, chunk_interval=1)


def _place(steps: Sequence[Step], ranks: Sequence[int], first_block: int, width: int) -> tuple[Step, ...]:
    return tuple(tuple(transfer.place(ranks, first_block, width) for transfer in step) for step in steps)
