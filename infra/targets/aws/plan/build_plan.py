"""The build plan of a cluster on AWS: controller and login as machines, compute groups as sets that are launched."""

from __future__ import annotations

from cluster import names
from cluster.catalog.instances import InstanceType
from cluster.inventory import Role
from cluster.spec import ClusterSpec
from infra.plan import BuildPlan, PlannedNode, assemble
from infra.targets.aws.plan import machines


def plan(spec: ClusterSpec) -> BuildPlan:
    """Return the permanent machines and the sets of nodes that a spec asks for."""
    controller = _rented(names.CONTROLLER, "controller", machines.controller(spec))
    login = (_rented(names.LOGIN, "login", machines.login(spec)),) if spec.login.enabled else ()
    return assemble(spec, (controller, *login), machines.sets(spec))


def _rented(name: str, role: Role, instance_type: InstanceType) -> PlannedNode:
    memory_mb = machines.memory_mb(instance_type)
    return PlannedNode(
        name=name, role=role, cpus=instance_type.vcpus, memory_mb=memory_mb, instance_type=instance_type.name
    )
