"""The Inventory of a cluster on AWS: machines that stay by address, groups that are launched by name as sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster import names
from cluster.inventory import Inventory, Node, NodeSet
from infra.plan import BuildPlan


def inventory(plan: BuildPlan, known: Mapping[str, Mapping[str, Any]], compute_key: str) -> Inventory:
    """`known` has address, host_key and machine_id of each machine that stays; `compute_key` is the host key of all
    compute nodes."""
    return Inventory(
        cluster=plan.cluster,
        target=plan.target,
        nodes=tuple(
            Node(name=node.name, role=node.role, cpus=node.cpus, memory_mb=node.memory_mb, **known[node.name])
            for node in plan.nodes
        ),
        sets=tuple(one.model_copy(update={"host_key": compute_key}) for one in plan.sets),
        mounts=tuple(volume.mount for volume in plan.volumes),
    )


def static_names(plan: BuildPlan) -> list[str]:
    """Nodes that always exist."""
    return [names.member(one.group, number) for one in plan.sets for number in range(1, one.static + 1)]


def with_static(domain: str, found: Inventory) -> Inventory:
    """The Inventory with those nodes by name: what the gate crosses. Which machine is behind a name may change."""
    members = (
        _member(one, names.member(one.group, number), domain)
        for one in found.sets
        for number in range(1, one.static + 1)
    )
    return found.model_copy(update={"nodes": (*found.nodes, *members)})


def _member(one: NodeSet, name: str, domain: str) -> Node:
    return Node(
        name=name,
        role="compute",
        group=one.group,
        address=f"{name}.{domain}",
        host_key=one.host_key,
        machine_id=name,
        cpus=one.cpus,
        memory_mb=one.memory_mb,
        gpus=one.gpus,
        fabric=one.fabric,
    )
