"""The Inventory of a cluster on AWS: permanent machines with their addresses, compute groups as sets of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster import names
from cluster.inventory import Inventory, Node, NodeSet
from infra.plan import BuildPlan

METADATA_ADDRESSES = ("169.254.169.254", "fd00:ec2::254")


def build_inventory(
    plan: BuildPlan, machines: Mapping[str, Mapping[str, Any]], host_keys: Mapping[str, str]
) -> Inventory:
    """Return the Inventory of a plan.

    `machines` has address, host_key and machine_id of each permanent machine; `host_keys` has the public host keys of
    compute nodes by name.
    """
    return Inventory(
        cluster=plan.cluster,
        target=plan.target,
        nodes=tuple(
            Node(name=node.name, role=node.role, cpus=node.cpus, memory_mb=node.memory_mb, **machines[node.name])
            for node in plan.nodes
        ),
        sets=tuple(
            node_set.model_copy(update={"host_keys": tuple(host_keys[name] for name in _members(node_set))})
            for node_set in plan.sets
        ),
        mounts=tuple(volume.mount for volume in plan.volumes),
        metadata_addresses=METADATA_ADDRESSES,
    )


def compute_names(plan: BuildPlan) -> list[str]:
    """Return the names of all compute nodes, also of those that Slurm has yet to launch."""
    return [name for node_set in plan.sets for name in _members(node_set)]


def static_names(plan: BuildPlan) -> list[str]:
    """Return the names of the static compute nodes."""
    return [name for node_set in plan.sets for name in names.members(node_set.group, node_set.static)]


def add_static_nodes(domain: str, inventory: Inventory) -> Inventory:
    """Return the Inventory with the static compute nodes, for the gate.

    The machine behind such a name may change, so the node's address is its DNS name.
    """
    members = (
        _member(node_set, name, domain)
        for node_set in inventory.sets
        for name in names.members(node_set.group, node_set.static)
    )
    return inventory.model_copy(update={"nodes": (*inventory.nodes, *members)})


def _members(node_set: NodeSet) -> Iterable[str]:
    return names.members(node_set.group, node_set.count)


def _member(node_set: NodeSet, name: str, domain: str) -> Node:
    return Node(
        name=name,
        role="compute",
        group=node_set.group,
        address=f"{name}.{domain}",
        host_key=node_set.find_host_key(name),
        machine_id=name,
        cpus=node_set.cpus,
        memory_mb=node_set.memory_mb,
        gpus=node_set.gpus,
        fabric=node_set.fabric,
    )
