"""The kind of link that a process group uses: inside a node, or the network between nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed

from trainer.metrics.communication import Link

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


def choose_link(ranks: Iterable[int], hosts: Sequence[str]) -> Link:
    """Return the slowest kind of link between ranks, given the host of each rank of the world."""
    return "node" if len({hosts[rank] for rank in ranks}) == 1 else "network"


def list_links(hosts: Sequence[str]) -> dict[str, Link]:
    """Return the link of each process group of this rank by the name of the group; none without hosts or groups."""
    if not hosts or not dist.is_available() or not dist.is_initialized():
        return {}
    names = dist.distributed_c10d._world.pg_names
    return {name: choose_link(dist.get_process_group_ranks(group), hosts) for group, name in names.items()}
