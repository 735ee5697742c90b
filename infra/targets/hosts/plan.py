"""The build plan of a cluster of hosts: one node per host that has a role."""

from __future__ import annotations

from cluster.inventory import NodeGpus
from cluster.spec import ClusterSpec
from infra.plan import BuildPlan, PlannedNode, assemble
from infra.targets.hosts.assign import Assignment, assign_hosts
from infra.targets.hosts.spec import hosts_section

# CPUs and memory are those that the machine has, which only the machine knows.
_READ_FROM_HOST = 0


def plan_hosts(spec: ClusterSpec) -> BuildPlan:
    """Return the plan of a valid spec."""
    section = hosts_section(spec)
    return assemble(spec, tuple(_plan_node(spec, assigned) for assigned in (assign_hosts(section) if section else ())))


def _plan_node(spec: ClusterSpec, assigned: Assignment) -> PlannedNode:
    group = spec.groups[assigned.group] if assigned.group else None
    gpus = NodeGpus(**group.gpus.model_dump()) if group else NodeGpus()
    return PlannedNode(
        name=assigned.node,
        role=assigned.role,
        group=assigned.group,
        cpus=_READ_FROM_HOST,
        memory_mb=_READ_FROM_HOST,
        gpus=gpus,
        fabric=group.fabric if group else "tcp",
    )
