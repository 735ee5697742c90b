"""The machines of a cluster on AWS: their instance types, what Slurm is configured with, and the build plan."""

from __future__ import annotations

from typing import TypeVar

from cluster import names
from cluster.catalog import bandwidth
from cluster.catalog.instances import InstanceType, instance
from cluster.inventory import NodeGpus, NodeSet, Role
from cluster.spec import ClusterSpec, Machine, NodeGroup
from infra.plan import BuildPlan, PlannedNode, assemble
from infra.targets.aws.plan import launch_template

CONTROLLER_TYPE = "m7i.xlarge"
LOGIN_TYPE = "m7i.large"
FIXED_ROOT_GB = 100
"""Root volume of controller and login."""
STATE_GB = 50
"""Volume with Slurm's state and accounting."""
# EC2 moves the machine off broken hardware by itself: it reboots, with the same id, address and volumes.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-recover.html
RECOVERY = {"auto_recovery": "default"}
# NVLink links per GPU, by generation of NVLink (A100; H100 and H200; B200 and B300).
_LINKS = {3: 12, 4: 18, 5: 18}
# Share of the memory that is left after what kernel and firmware reserve.
_VISIBLE_SHARE = 0.97

M = TypeVar("M", bound=Machine)


def build_plan(spec: ClusterSpec) -> BuildPlan:
    """Return the permanent machines and the sets of nodes of a spec."""
    controller_node = _plan_node(names.CONTROLLER, "controller", controller(spec))
    login_node = (_plan_node(names.LOGIN, "login", login(spec)),) if spec.login.enabled else ()
    return assemble(spec, (controller_node, *login_node), node_sets(spec))


def controller(spec: ClusterSpec) -> InstanceType:
    """Return the instance type of the controller."""
    return instance(spec.controller.instance_type or CONTROLLER_TYPE)


def login(spec: ClusterSpec) -> InstanceType:
    """Return the instance type of the login node."""
    return instance(spec.login.instance_type or LOGIN_TYPE)


def compute(group: NodeGroup) -> InstanceType:
    """Return the instance type of a group's nodes, which is tried first."""
    return instance(group.instance_type or "")


def compute_types(group: NodeGroup) -> tuple[InstanceType, ...]:
    """Return every instance type that a group's nodes may have, in the order in which they are tried."""
    return (compute(group), *map(instance, group.capacity.fallback_types))


def with_default_types(spec: ClusterSpec) -> ClusterSpec:
    """Return the spec with the default instance types of controller and login, and root disks, written out."""
    groups = {n: g.model_copy(update={"root_gb": launch_template.root_gb(g)}) for n, g in spec.groups.items()}
    machines = {
        "groups": groups,
        "controller": _with_type(spec.controller, CONTROLLER_TYPE),
        "login": _with_type(spec.login, LOGIN_TYPE),
    }
    return spec.model_copy(update=machines)


def node_sets(spec: ClusterSpec) -> tuple[NodeSet, ...]:
    """Return the compute nodes of a spec, one set per group."""
    return tuple(_node_set(name, group) for name, group in spec.groups.items())


def memory_mb(instance_type: InstanceType) -> int:
    """Return at most what the node's kernel will report, because Slurm drains a node with less than configured."""
    return int(instance_type.memory_mb * _VISIBLE_SHARE)


def _plan_node(name: str, role: Role, instance_type: InstanceType) -> PlannedNode:
    return PlannedNode(
        name=name,
        role=role,
        cpus=instance_type.vcpus,
        memory_mb=memory_mb(instance_type),
        instance_type=instance_type.name,
    )


def count_links(instance_type: InstanceType) -> int:
    """Return the number of NVLink links that each GPU of a type has."""
    return _LINKS[instance_type.nvlink] if instance_type.nvlink else 0


def _with_type(machine: M, name: str) -> M:
    return machine if machine.instance_type else machine.model_copy(update={"instance_type": name})


def _node_set(name: str, group: NodeGroup) -> NodeSet:
    instance_type, *fallbacks = compute_types(group)
    # Slurm knows one size for all nodes of a group: what the smallest has.
    types = (instance_type, *fallbacks)
    same_sockets = len({(kind.vcpus, kind.cores, kind.sockets) for kind in types}) == 1
    return NodeSet(
        group=name,
        count=group.count if group.count is not None else group.max or 0,
        static=group.count if group.count is not None else group.min or 0,
        cpus=min(kind.vcpus for kind in types),
        cores=instance_type.cores if instance_type.sockets and same_sockets else 0,
        sockets=instance_type.sockets if instance_type.sockets and same_sockets else 0,
        memory_mb=min(map(memory_mb, types)),
        gpus=_gpus(instance_type),
        fabric=group.fabric,
        instance_type=instance_type.name,
        nvlinks=count_links(instance_type),
        ultraserver=instance_type.ultraserver > 0,
        efa_devices=instance_type.efa_interfaces if group.fabric == "efa" else 0,
        busbw=bandwidth.expected_busbw(instance_type) if group.fabric == "efa" else {},
    )


def _gpus(instance_type: InstanceType) -> NodeGpus:
    gpus = instance_type.gpus
    if not gpus.count:
        return NodeGpus()
    devices = tuple(f"/dev/nvidia{index}" for index in range(gpus.count))
    return NodeGpus(count=gpus.count, kind="real", type=gpus.type, devices=devices)
