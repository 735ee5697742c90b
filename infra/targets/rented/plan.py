"""The build plan of a cluster whose nodes are rented machines. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cluster import names
from cluster.inventory import NodeGpus, Role
from cluster.spec import ClusterSpec, NodeGroup
from infra.plan import BuildPlan, PlannedNode, assemble, node_count

DEFAULT_CIDR = "10.88.0.0/20"


@dataclass(frozen=True)
class Hardware:
    """The hardware of a machine, and the name by which the cloud sells it."""

    cpus: int
    memory_gb: int
    instance_type: str


Choose = Callable[[str, str | None], Hardware]
"""Returns the hardware of a node by its role and, for compute nodes, its group."""


def plan_machines(spec: ClusterSpec, choose: Choose) -> BuildPlan:
    """Return the plan of a valid spec."""
    nodes = [_plan_node(choose, names.CONTROLLER, "controller")]
    if spec.login.enabled:
        nodes.append(_plan_node(choose, names.LOGIN, "login"))
    for name, group in spec.groups.items():
        nodes += [_plan_node(choose, node, "compute", name, group) for node in names.members(name, node_count(group))]
    planned = assemble(spec, tuple(nodes))
    return planned.model_copy(update={"cidr": spec.network.cidr or DEFAULT_CIDR})


def _plan_node(
    choose: Choose, name: str, role: Role, group_name: str | None = None, group: NodeGroup | None = None
) -> PlannedNode:
    hardware = choose(role, group_name)
    return PlannedNode(
        name=name,
        role=role,
        group=group_name,
        cpus=hardware.cpus,
        memory_mb=hardware.memory_gb * 1024,
        gpus=NodeGpus(count=group.gpus.count, kind=group.gpus.kind, type=group.gpus.type) if group else NodeGpus(),
        fabric=group.fabric if group else "tcp",
        instance_type=hardware.instance_type,
    )
