"""What the machines of a cluster on AWS are: their types, and what Slurm is told of them."""

from __future__ import annotations

from typing import TypeVar

from cluster.catalog import bandwidth
from cluster.catalog.instances import InstanceType, instance
from cluster.inventory import NodeGpus, NodeSet
from cluster.spec import ClusterSpec, Machine, NodeGroup

CONTROLLER_TYPE = "m7i.xlarge"
LOGIN_TYPE = "m7i.large"
FIXED_ROOT_GB = 100
"""Root volume of controller and login."""
STATE_GB = 50
"""The volume that holds Slurm's state and accounting."""
# EC2 itself moves such a machine off broken hardware: same id, address and volumes, and a boot.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-recover.html
RECOVERY = {"auto_recovery": "default"}
# Links of one GPU by generation of NVLink (A100; H100 and H200; B200 and B300).
_LINKS = {3: 12, 4: 18, 5: 18}
# What the kernel and the firmware keep for themselves before anybody is asked.
_VISIBLE = 0.97

M = TypeVar("M", bound=Machine)


def controller(spec: ClusterSpec) -> InstanceType:
    return instance(spec.controller.instance_type or CONTROLLER_TYPE)


def login(spec: ClusterSpec) -> InstanceType:
    return instance(spec.login.instance_type or LOGIN_TYPE)


def compute(group: NodeGroup) -> InstanceType:
    return instance(group.instance_type or "")


def typed(spec: ClusterSpec) -> ClusterSpec:
    """The spec with the types that controller and login get where it names none."""
    machines = {
        "controller": _typed(spec.controller, CONTROLLER_TYPE),
        "login": _typed(spec.login, LOGIN_TYPE),
    }
    return spec.model_copy(update=machines)


def sets(spec: ClusterSpec) -> tuple[NodeSet, ...]:
    return tuple(_set(name, group) for name, group in spec.groups.items())


def memory_mb(found: InstanceType) -> int:
    """What the node's own kernel will report, or a little less: Slurm drains a node that has less than it was told."""
    return int(found.memory_mb * _VISIBLE)


def _typed(machine: M, name: str) -> M:
    return machine if machine.instance_type else machine.model_copy(update={"instance_type": name})


def _set(name: str, group: NodeGroup) -> NodeSet:
    found = compute(group)
    return NodeSet(
        group=name,
        count=group.count if group.count is not None else group.max or 0,
        static=group.count if group.count is not None else group.min or 0,
        cpus=found.vcpus,
        memory_mb=memory_mb(found),
        gpus=_gpus(found),
        fabric=group.fabric,
        instance_type=found.name,
        nvlinks=_LINKS[found.nvlink] if found.nvlink else 0,
        efa_devices=found.efa_interfaces if group.fabric == "efa" else 0,
        busbw=bandwidth.expected_busbw(found) if group.fabric == "efa" else {},
    )


def _gpus(found: InstanceType) -> NodeGpus:
    if not found.gpus.count:
        return NodeGpus()
    devices = tuple(f"/dev/nvidia{index}" for index in range(found.gpus.count))
    return NodeGpus(count=found.gpus.count, kind="real", type=found.gpus.type, devices=devices)
