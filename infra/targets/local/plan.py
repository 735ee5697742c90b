"""The build plan of a local cluster: a container per node, sized by the spec or by default."""

from __future__ import annotations

from typing import TypeVar

from cluster import names
from cluster.inventory import NodeGpus
from cluster.spec import ClusterSpec, Gpus, Machine, NodeGroup, Size
from infra.plan import BuildPlan, PlannedNode, assemble, node_count
from infra.targets.local.spec import own_image

CONTROLLER_SIZE = Size(cpus=2, memory_mb=2048)
LOGIN_SIZE = Size(cpus=2, memory_mb=1024)
COMPUTE_SIZE = Size(cpus=2, memory_mb=2048)

MachineT = TypeVar("MachineT", bound=Machine)


def plan(spec: ClusterSpec) -> BuildPlan:
    """Return every container and volume that a spec asks for."""
    compute = (node for name, group in spec.groups.items() for node in _compute(name, group))
    planned = assemble(spec, (_controller(spec), *_login(spec), *compute))
    image = own_image(spec)
    return planned.model_copy(update={"image": image}) if image else planned


def resolve(spec: ClusterSpec) -> ClusterSpec:
    """Return the spec with default sizes written out: unset and written out are the same."""
    groups = {name: _with_size(group, COMPUTE_SIZE) for name, group in spec.groups.items()}
    controller, login = _with_size(spec.controller, CONTROLLER_SIZE), _with_size(spec.login, LOGIN_SIZE)
    return spec.model_copy(update={"groups": groups, "controller": controller, "login": login})


def _with_size(machine: MachineT, size: Size) -> MachineT:
    return machine if machine.size else machine.model_copy(update={"size": size})


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


def _compute(name: str, group: NodeGroup) -> tuple[PlannedNode, ...]:
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
