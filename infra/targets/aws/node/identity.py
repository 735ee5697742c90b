"""Which node of the cluster this machine is: its name comes from a tag, its place from the inventory in the bundle."""

from __future__ import annotations

import re

from bootstrap.errors import BootstrapError
from cluster.inventory import Inventory, Node, parameters
from infra.targets.aws.node import early, imds, signed

STEP = "identity"


def identify(inventory: Inventory) -> Node:
    name = early.name(parameters.NODE_TAG)
    instance = signed.patiently(lambda: imds.read("instance-id"), "instance id")
    address = signed.patiently(lambda: imds.read("local-ipv4"), "address")
    return place(inventory, name, instance, address)


def place(inventory: Inventory, name: str, instance: str, address: str) -> Node:
    """The node of this name, on this machine; a member of a set has no entry of its own before it exists."""
    for node in inventory.nodes:
        if node.name == name:
            return node.model_copy(update={"machine_id": instance, "address": address})
    for one in inventory.sets:
        match = re.fullmatch(rf"{re.escape(one.group)}-([1-9]\d*)", name)
        if match and int(match[1]) <= one.count:
            return Node(
                name=name,
                role="compute",
                group=one.group,
                cpus=one.cpus,
                memory_mb=one.memory_mb,
                gpus=one.gpus,
                fabric=one.fabric,
                host_key=one.host_key,
                machine_id=instance,
                address=address,
            )
    known = ", ".join([*(n.name for n in inventory.nodes), *(f"{s.group}-1 to -{s.count}" for s in inventory.sets)])
    fix = f"the tag {parameters.NODE_TAG} must be one of: {known}; or the machine has the bundle of another cluster"
    raise BootstrapError(name, STEP, f"the cluster has no node {name}", fix=fix)


def joined(inventory: Inventory, me: Node) -> Inventory:
    """The inventory with this machine in it, as it really is."""
    others = [node for node in inventory.nodes if node.name != me.name]
    order = [node.name for node in inventory.nodes]
    nodes = sorted([*others, me], key=lambda n: order.index(n.name) if n.name in order else len(order))
    return inventory.model_copy(update={"nodes": tuple(nodes)})
