"""Double binary tree: two trees that share the work, each with half of the tensor.

In a binary tree a sum takes only log2(n) steps up and as many down, but half of the ranks are leaves, whose links are
nearly idle. So there are two trees, and every rank is a leaf in at least one of them (Sanders, Speck and Träff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009). NCCL uses such trees too.

The first tree is the search tree of the ranks: the root of n ranks is the one at position 2^d - 1, where
d = floor(log2(n)); those before it are its left subtree, those after it the right one, by the same rule. Only odd ranks
have children. The second tree is the first with every rank replaced by the next one (rank 0 follows n-1), so there only
even ranks have children.

The tensor of S bytes has 2 blocks, one per tree. A rank at depth t of a tree sends its block to its parent in step d-t,
after its children have sent theirs in the step before, and gets the sum from its parent in step d+t-1. Both trees work
in the same 2d steps. A rank sends at most 2S bytes: half of the tensor up in each tree, and to two children down in
one. Chunks follow each other at an interval of one step, so all levels of the trees are busy with different chunks.

Order of summation: at every rank of a tree, (own + left child's sum) + right child's sum. It differs between the halves
of a chunk. The rounding error grows with log2(n).
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.collectives.schedule import Schedule, Transfer


@dataclass(frozen=True)
class Place:
    """The neighbours of a rank in a tree; the root has depth 0 and no parent."""

    depth: int
    parent: int | None
    children: tuple[int, ...]


def schedule_all_reduce(rank: int, ranks: int) -> Schedule:
    """Return the schedule after which every rank has the sum of both blocks."""
    height = ranks.bit_length() - 1
    steps: list[list[Transfer]] = [[] for _ in range(2 * height)]
    for block in range(2):
        place = find_place((rank - block) % ranks, ranks)
        if place.parent is not None:
            parent = (place.parent + block) % ranks
            steps[height - place.depth].append(Transfer("send", parent, block, block + 1))
            steps[height + place.depth - 1].append(Transfer("receive", parent, block, block + 1))
        for child in ((peer + block) % ranks for peer in place.children):
            steps[height - place.depth - 1].append(Transfer("add", child, block, block + 1))
            steps[height + place.depth].append(Transfer("send", child, block, block + 1))
    return Schedule(2, tuple(map(tuple, steps)), chunk_interval=1)


def find_place(rank: int, ranks: int) -> Place:
    """Return the place of a rank in the search tree."""
    first, stop, depth, parent = 0, ranks, 0, None
    while (root := _find_root(first, stop)) != rank:
        first, stop = (first, root) if rank < root else (root + 1, stop)
        depth, parent = depth + 1, root
    subtrees = ((first, rank), (rank + 1, stop))
    return Place(depth, parent, tuple(_find_root(*subtree) for subtree in subtrees if subtree[0] < subtree[1]))


def _find_root(first: int, stop: int) -> int:
    return first + (1 << ((stop - first).bit_length() - 1)) - 1
