"""Facts about a cluster on AWS: machines from EC2 by tag, Slurm's from the controller through Run Command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from bootstrap.transport.base import TransportError
from cluster.inventory import Inventory, Node, NodeSet
from cluster.names import member
from infra.targets.aws import run_command
from infra.targets.aws.instances import Instance, list_instances, translate_errors
from infra.targets.facts import SCRIPT, Facts, Machine, Slurm, parse

_SLURM_TIMEOUT_S = 30.0
_RUNNING = "running"


def gather_facts(inventory: Inventory, region: str, stack: str) -> Facts:
    """Return the machines of a cluster and what Slurm reports about its nodes."""
    with translate_errors("machines", region):
        instances = {instance.name: instance for instance in list_instances(region, inventory.cluster, stack)}
    now = datetime.now(UTC)
    machines = {node.name: _to_machine(instances.get(node.name), "gone", now) for node in inventory.nodes}
    for node_set in inventory.sets:
        machines |= {name: _to_machine(instances.get(name), missing, now) for name, missing in _list_members(node_set)}
    set_nodes = (to_node(node_set, name) for node_set in inventory.sets for name, _ in _list_members(node_set))
    slurm = _query_slurm(region, instances, inventory.controller.name)
    return Facts(inventory, (*inventory.nodes, *set_nodes), machines, slurm)


def _query_slurm(region: str, instances: Mapping[str, Instance], controller: str) -> Slurm:
    instance = instances.get(controller)
    if instance is None or instance.state != _RUNNING:
        return Slurm(problem=f"the controller's machine is {instance.state if instance else 'gone'}")
    try:
        completed = run_command.run(region, instance.id, SCRIPT, _SLURM_TIMEOUT_S)
    except TransportError as error:
        return Slurm(problem=error.line)
    if completed.code != 0:
        return Slurm(problem=completed.err.strip() or f"Slurm's commands ended with code {completed.code}")
    return parse(completed.out)


def _list_members(node_set: NodeSet) -> Iterator[tuple[str, str]]:
    """Yield the name of each node, and its state if it has no machine."""
    for number in range(1, node_set.count + 1):
        yield member(node_set.group, number), "gone" if number <= node_set.static else "off"


def _to_machine(instance: Instance | None, missing: str, now: datetime) -> Machine:
    if instance is None:
        return Machine(missing)
    up_s = (now - instance.launched).total_seconds() if instance.state == _RUNNING else None
    return Machine(instance.state, up_s)


def to_node(node_set: NodeSet, name: str) -> Node:
    """Return a node without address and machine, which only EC2 knows."""
    return Node(
        name=name,
        role="compute",
        group=node_set.group,
        address="",
        host_key=node_set.find_host_key(name),
        machine_id="",
        cpus=node_set.cpus,
        memory_mb=node_set.memory_mb,
        gpus=node_set.gpus,
        fabric=node_set.fabric,
    )
