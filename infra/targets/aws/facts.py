"""Facts of a cluster on AWS: machines from EC2 by tag, Slurm from the controller through Run Command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from bootstrap.transport.base import TransportError
from cluster.inventory import Inventory, Node, NodeSet
from cluster.names import member
from infra.targets.aws import run_command
from infra.targets.aws.instances import Instance, asking, instances
from infra.targets.facts import SCRIPT, Facts, Machine, Slurm, parse

_ASK_S = 30.0
_RUNNING = "running"


def gather(known: Inventory, region: str, stack: str) -> Facts:
    with asking("machines", region):
        found = {one.name: one for one in instances(region, known.cluster, stack)}
    now = datetime.now(UTC)
    machines = {node.name: _machine(found.get(node.name), "gone", now) for node in known.nodes}
    for one in known.sets:
        machines |= {name: _machine(found.get(name), missing, now) for name, missing in _members(one)}
    nodes = (*known.nodes, *(_node(one, name) for one in known.sets for name, _ in _members(one)))
    return Facts(known, nodes, machines, _ask_slurm(region, found, known.controller.name))


def _ask_slurm(region: str, found: Mapping[str, Instance], controller: str) -> Slurm:
    machine = found.get(controller)
    if machine is None or machine.state != _RUNNING:
        return Slurm(problem=f"the controller's machine is {machine.state if machine else 'gone'}")
    try:
        done = run_command.run(region, machine.id, SCRIPT, _ASK_S)
    except TransportError as silent:
        return Slurm(problem=silent.line)
    if done.code != 0:
        return Slurm(problem=done.err.strip() or f"the questions ended with code {done.code}")
    return parse(done.out)


def _members(one: NodeSet) -> Iterator[tuple[str, str]]:
    """Name of each node, and what it is where it has no machine."""
    for number in range(1, one.count + 1):
        yield member(one.group, number), "gone" if number <= one.static else "off"


def _machine(found: Instance | None, missing: str, now: datetime) -> Machine:
    if found is None:
        return Machine(missing, kind="machine")
    up_s = (now - found.launched).total_seconds() if found.state == _RUNNING else None
    return Machine(found.state, up_s, kind="machine")


def _node(one: NodeSet, name: str) -> Node:
    """As far as it shows; which machine is behind the name is EC2's to say."""
    return Node(
        name=name,
        role="compute",
        group=one.group,
        address="",
        host_key=one.host_key,
        machine_id="",
        cpus=one.cpus,
        memory_mb=one.memory_mb,
        gpus=one.gpus,
        fabric=one.fabric,
    )
