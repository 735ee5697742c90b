"""Find out which node of the cluster this machine is: its name is in a tag, everything else in the inventory."""

from __future__ import annotations

import json
import re

from bootstrap.errors import BootstrapError
from cluster.inventory import Inventory, Node, NodeSet
from infra.targets.aws.node import early, imds, parameters, signed

STEP = "identity"


def identify(inventory: Inventory) -> Node:
    """Return this machine as a node of the inventory."""
    name = early.read_name(parameters.NODE_TAG)
    instance = signed.retry(lambda: imds.read("instance-id"), "instance id")
    address = signed.retry(lambda: imds.read("local-ipv4"), "address")
    return find_node(inventory, name, instance, address)


def read_arn(region: str) -> str:
    """Return the ARN of this machine, by which AWS knows it in every request with its credentials."""
    profile = json.loads(imds.read("iam/info"))["InstanceProfileArn"]
    _, partition, _, _, account, _ = profile.split(":", 5)
    return f"arn:{partition}:ec2:{region}:{account}:instance/{imds.read('instance-id')}"


def find_node(inventory: Inventory, name: str, instance: str, address: str) -> Node:
    """Return the node of this name; members of a set have no entry in the inventory before they exist."""
    for node in inventory.nodes:
        if node.name == name:
            return node.model_copy(update={"machine_id": instance, "address": address})
    for node_set in inventory.sets:
        match = re.fullmatch(rf"{re.escape(node_set.group)}-([1-9]\d*)", name)
        if match and int(match[1]) <= node_set.count:
            return _member(node_set, name, instance, address)
    names = [*(n.name for n in inventory.nodes), *(f"{s.group}-1 to -{s.count}" for s in inventory.sets)]
    fix = (
        f"the tag {parameters.NODE_TAG} must be one of: {', '.join(names)}; "
        "otherwise the machine has the bundle of another cluster"
    )
    raise BootstrapError(name, STEP, f"the cluster has no node {name}", fix=fix)


def add_node(inventory: Inventory, node: Node) -> Inventory:
    """Return the inventory with this machine in it, in place of the node that had its name before."""
    others = [other for other in inventory.nodes if other.name != node.name]
    order = [other.name for other in inventory.nodes]
    nodes = sorted([*others, node], key=lambda n: order.index(n.name) if n.name in order else len(order))
    return inventory.model_copy(update={"nodes": tuple(nodes)})


def _member(node_set: NodeSet, name: str, instance: str, address: str) -> Node:
    return Node(
        name=name,
        role="compute",
        group=node_set.group,
        cpus=node_set.cpus,
        memory_mb=node_set.memory_mb,
        gpus=node_set.gpus,
        fabric=node_set.fabric,
        host_key=node_set.find_host_key(name),
        machine_id=instance,
        address=address,
    )
