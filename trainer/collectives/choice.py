"""Choose the pattern of an all-reduce for `communication.pattern`, from the size of the message and the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from trainer.collectives.schedule import check_nodes
from trainer.collectives.timing_table import Method, TimingTable

Setting = Literal["auto", "ring", "tree", "hierarchical"]
TREE_LARGEST_BYTES = 1 << 20
"""Largest message for which `auto` uses a tree: it has fewer steps than a ring, but sends up to n/(n-1) times more."""


@dataclass(frozen=True)
class Choice:
    """A pattern, or the backend's own all-reduce, with the ranks per node that only `hierarchical` takes."""

    pattern: Method
    ranks_per_node: int | None = None


def count_ranks_per_node(hosts: Sequence[str]) -> int:
    """Return the number of ranks on each node, from the host of each rank.

    Raise ValueError unless all nodes have the same number of ranks, and those of a node are consecutive.
    """
    nodes = [(host, len(list(ranks))) for host, ranks in groupby(hosts)]
    if len({host for host, _ in nodes}) < len(nodes):
        raise ValueError(f"the ranks of a node are not consecutive: they are on {', '.join(hosts)}")
    counts = {count for _, count in nodes}
    if len(counts) > 1:
        sizes = ", ".join(f"{host} has {count}" for host, count in nodes)
        raise ValueError(f"nodes have different numbers of ranks: {sizes}")
    return counts.pop()


def choose_pattern(
    setting: Setting, size_bytes: int, ranks: int, ranks_per_node: int, table: TimingTable | None = None
) -> Choice:
    """Return the pattern that is set, or the choice of `auto`.

    - With a table of measured times: the fastest method, which may be the backend's.
    - Hierarchical, if there are several nodes with the same number of ranks, and more than one each, because links
      between nodes are usually slower than those inside.
    - Otherwise a tree for messages of up to 1 MB, and a ring for larger ones.
    """
    if setting == "hierarchical":
        check_nodes(ranks, ranks_per_node)
        return Choice("hierarchical", ranks_per_node)
    if setting != "auto":
        return Choice(setting)
    if table is not None:
        fastest = table.find_fastest(size_bytes)
        return Choice(fastest, ranks_per_node if fastest == "hierarchical" else None)
    if 1 < ranks_per_node < ranks and ranks % ranks_per_node == 0:
        return Choice("hierarchical", ranks_per_node)
    return Choice("tree" if size_bytes <= TREE_LARGEST_BYTES else "ring")
