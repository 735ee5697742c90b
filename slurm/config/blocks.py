"""topology.conf with blocks: the nodes of one UltraServer are a block, because NVLink connects all their GPUs.

Slurm places a job into as few blocks as possible, and `--segment` says how many of its nodes must share a block
(https://slurm.schedmd.com/topology.html). Nodes outside all blocks are scheduled as without a topology.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster.inventory import NodeSet
from cluster.names import members
from slurm.hostlist import hostlist

_BLOCK = "BlockName="


def select_ultraservers(sets: Iterable[NodeSet]) -> list[NodeSet]:
    """Return the node sets that are an UltraServer each."""
    return [nodes for nodes in sets if nodes.ultraserver and nodes.count]


def render_blocks(ultraservers: Iterable[NodeSet]) -> str:
    """Return the file with a block for each UltraServer.

    The planning size is that of the smallest block, because Slurm requires that no block has fewer nodes.
    """
    sets = list(ultraservers)
    blocks = [f"{_BLOCK}{nodes.group} Nodes={hostlist(members(nodes.group, nodes.count))}" for nodes in sets]
    size = min(nodes.count for nodes in sets)
    return "\n".join(["# Written by muster: the nodes of each UltraServer.", *blocks, f"BlockSizes={size}", ""])


def has_blocks(text: str) -> bool:
    """Return whether a topology file describes blocks rather than switches."""
    return any(line.startswith(_BLOCK) for line in text.splitlines())
