"""The build plan: every node and volume a spec asks for, with nothing left to default."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from cluster import names
from cluster.catalog.instances import InstanceType
from cluster.inventory import NodeGpus, NodeSet, Role
from cluster.spec import ClusterSpec, Fabric, Gpus, Machine, NodeGroup, Size
from infra.targets.aws.plan import machines

CONTROLLER_SIZE = Size(cpus=2, memory_mb=2048)
LOGIN_SIZE = Size(cpus=2, memory_mb=1024)
COMPUTE_SIZE = Size(cpus=2, memory_mb=2048)

M = TypeVar("M", bound=Machine)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedNode(Part):
    name: str
    role: Role
    group: str | None = None
    cpus: int
    memory_mb: int
    gpus: NodeGpus = NodeGpus()
    fabric: Fabric = "tcp"
    instance_type: str | None = None
    ssh_port: int | None = None
    """Port of 127.0.0.1 that leads to this node's SSH."""


class Member(Part):
    """A node by name alone: what can run jobs, or keeps those that do."""

    name: str
    role: Role
    group: str | None = None


class PlannedVolume(Part):
    name: str
    """The storage's name in the spec; `names.volume` makes the Docker name of it."""
    mount: str
    size_gb: int | None = None


class BuildPlan(Part):
    cluster: str
    target: str
    nodes: tuple[PlannedNode, ...]
    sets: tuple[NodeSet, ...] = ()
    """Compute nodes of targets that launch them by name; `nodes` then has only controller and login."""
    volumes: tuple[PlannedVolume, ...]
    cidr: str | None = None
    egress: bool = True
    tags: dict[str, str] = {}
    image: str = names.IMAGE

    @property
    def members(self) -> tuple[Member, ...]:
        """Every node that exists or may come to exist."""
        made = (Member(name=node.name, role=node.role, group=node.group) for node in self.nodes)
        launched = (
            Member(name=names.member(part.group, number), role="compute", group=part.group)
            for part in self.sets
            for number in range(1, part.count + 1)
        )
        return (*made, *launched)


def plan(spec: ClusterSpec) -> BuildPlan:
    return BuildPlan(
        cluster=spec.name,
        target=spec.target,
        nodes=_cloud_nodes(spec) if spec.target == "aws" else _nodes(spec),
        sets=machines.sets(spec) if spec.target == "aws" else (),
        volumes=_volumes(spec),
        cidr=spec.network.cidr,
        egress=spec.network.egress,
        tags=spec.tags,
    )


def resolved(spec: ClusterSpec) -> ClusterSpec:
    """The spec with the sizes or types that nodes get where it names none: unset and written out are the same."""
    if spec.target == "aws":
        return machines.typed(spec)
    if spec.target != "local":
        return spec
    groups = {name: _sized(group, COMPUTE_SIZE) for name, group in spec.groups.items()}
    controller, login = _sized(spec.controller, CONTROLLER_SIZE), _sized(spec.login, LOGIN_SIZE)
    return spec.model_copy(update={"groups": groups, "controller": controller, "login": login})


def node_count(group: NodeGroup) -> int:
    """Nodes of the group that always exist; those between min and max come and go with the queue."""
    return group.count if group.count is not None else group.min or 0


def _sized(machine: M, size: Size) -> M:
    return machine if machine.size else machine.model_copy(update={"size": size})


def _nodes(spec: ClusterSpec) -> tuple[PlannedNode, ...]:
    members = (node for name, group in spec.groups.items() for node in _members(name, group))
    return (_controller(spec), *_login(spec), *members)


def _cloud_nodes(spec: ClusterSpec) -> tuple[PlannedNode, ...]:
    controller = _rented(names.CONTROLLER, "controller", machines.controller(spec))
    return (controller, _rented(names.LOGIN, "login", machines.login(spec))) if spec.login.enabled else (controller,)


def _rented(name: str, role: Role, found: InstanceType) -> PlannedNode:
    memory_mb = machines.memory_mb(found)
    return PlannedNode(name=name, role=role, cpus=found.vcpus, memory_mb=memory_mb, instance_type=found.name)


def _controller(spec: ClusterSpec) -> PlannedNode:
    size = spec.controller.size or CONTROLLER_SIZE
    return PlannedNode(name=names.CONTROLLER, role="controller", cpus=size.cpus, memory_mb=size.memory_mb)


def _login(spec: ClusterSpec) -> tuple[PlannedNode, ...]:
    if not spec.login.enabled:
        return ()
    size = spec.login.size or LOGIN_SIZE
    return (
        PlannedNode(
            name=names.LOGIN,
            role="login",
            cpus=size.cpus,
            memory_mb=size.memory_mb,
            ssh_port=spec.login.ssh_port,
        ),
    )


def _members(name: str, group: NodeGroup) -> tuple[PlannedNode, ...]:
    size = group.size or COMPUTE_SIZE
    return tuple(
        PlannedNode(
            name=names.member(name, number),
            role="compute",
            group=name,
            cpus=size.cpus,
            memory_mb=size.memory_mb,
            gpus=_gpus(group.gpus),
            fabric=group.fabric,
        )
        for number in range(1, node_count(group) + 1)
    )


def _gpus(gpus: Gpus) -> NodeGpus:
    devices = tuple(names.gpu_device(i) for i in range(gpus.count)) if gpus.kind == "simulated" else ()
    return NodeGpus(count=gpus.count, kind=gpus.kind, type=gpus.type, devices=devices)


def _volumes(spec: ClusterSpec) -> tuple[PlannedVolume, ...]:
    """`/shared` first: the Inventory's first mount is where homes, jobs and environments live."""
    ordered = sorted(spec.storage.items(), key=lambda item: item[1].mount != "/shared")
    return tuple(PlannedVolume(name=name, mount=s.mount, size_gb=s.size_gb) for name, s in ordered)
