"""Find the groups of ranks that communicate in each dimension of a layout."""

from __future__ import annotations

from functools import cache
from math import gcd

from simulator.collectives import Group
from simulator.hardware.system import System
from simulator.layout import Layout


def fast_domain_gpus(system: System) -> int:
    """Return the number of GPUs connected without the network: a node, or a rack that is one NVLink domain."""
    return max(system.nvlink_domain, system.gpus_per_node)


def group_of_ranks(ranks: int, stride: int, total: int, system: System) -> Group:
    """Return the group of `ranks` that are `stride` apart, in the order tensor, context, data, pipeline."""
    return _group(ranks, stride, min(fast_domain_gpus(system), total))


@cache
def _group(ranks: int, stride: int, domain_gpus: int) -> Group:
    inside = gcd(ranks, max(1, domain_gpus // stride))
    if ranks <= inside:
        return Group(ranks=ranks, per_node=ranks, sharing=1)
    return Group(ranks=ranks, per_node=inside, sharing=max(1, domain_gpus // inside))


def tensor_group(layout: Layout, system: System) -> Group:
    """Return the group of tensor-parallel ranks."""
    return group_of_ranks(layout.tp, 1, layout.gpus, system)


def context_group(layout: Layout, system: System) -> Group:
    """Return the group of context-parallel ranks."""
    return group_of_ranks(layout.cp, layout.tp, layout.gpus, system)


def expert_group(layout: Layout, system: System) -> Group:
    """Return the group of expert-parallel ranks."""
    return group_of_ranks(layout.ep, layout.tp, layout.gpus, system)


def data_group(layout: Layout, system: System) -> Group:
    """Return the group of data-parallel ranks over which state is sharded."""
    ranks = layout.dp * layout.cp
    return group_of_ranks(min(layout.shard or ranks, ranks), layout.tp, layout.gpus, system)


def replica_group(layout: Layout, system: System) -> Group:
    """Return the group of HSDP replicas."""
    ranks = layout.dp * layout.cp
    shard = min(layout.shard or ranks, ranks)
    return group_of_ranks(ranks // shard, layout.tp * shard, layout.gpus, system)


def expert_data_group(layout: Layout, system: System) -> Group:
    """Return the group of data-parallel ranks that hold the same experts."""
    return group_of_ranks(max(1, layout.dp * layout.cp // layout.ep), layout.tp * layout.ep, layout.gpus, system)


def pipeline_group(layout: Layout, system: System) -> Group:
    """Return the group of two neighboring pipeline stages."""
    return group_of_ranks(2, layout.tp * layout.cp * layout.dp, layout.gpus, system)
