"""The build plan, which a target derives from a spec: every node and volume, with all defaults filled in."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from cluster import names
from cluster.inventory import NodeGpus, NodeSet, Role
from cluster.spec import ClusterSpec, Fabric, NodeGroup


class PlanModel(BaseModel):
    """The base of all models in a plan: immutable, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedNode(PlanModel):
    """A machine that `up` creates."""

    name: str
    role: Role
    group: str | None = None
    cpus: int
    memory_mb: int
    gpus: NodeGpus = NodeGpus()
    fabric: Fabric = "tcp"
    instance_type: str | None = None
    ssh_port: int | None = None
    """Port of 127.0.0.1 that is forwarded to the SSH server of the node."""


class Member(PlanModel):
    """A node by its name, whether its machine exists already or is launched later."""

    name: str
    role: Role
    group: str | None = None


class PlannedVolume(PlanModel):
    """A shared filesystem."""

    name: str
    """The storage's name in the spec."""
    mount: str
    size_gb: int | None = None


class BuildPlan(PlanModel):
    """The nodes, volumes and network of a cluster."""

    cluster: str
    target: str
    nodes: tuple[PlannedNode, ...]
    sets: tuple[NodeSet, ...] = ()
    """Compute nodes of targets that launch them by name; `nodes` then has only controller and login."""
    volumes: tuple[PlannedVolume, ...]
    cidr: str | None = None
    egress: bool = True
    tags: dict[str, str] = {}
    image: str
    """Docker image of local nodes."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Return all nodes, including those that are launched later."""
        permanent = (Member(name=node.name, role=node.role, group=node.group) for node in self.nodes)
        launched = (
            Member(name=names.member(node_set.group, number), role="compute", group=node_set.group)
            for node_set in self.sets
            for number in range(1, node_set.count + 1)
        )
        return (*permanent, *launched)


def assemble(spec: ClusterSpec, nodes: tuple[PlannedNode, ...], sets: tuple[NodeSet, ...] = ()) -> BuildPlan:
    """Return the plan of a spec for the nodes that its target chose."""
    return BuildPlan(
        cluster=spec.name,
        target=spec.target,
        nodes=nodes,
        sets=sets,
        volumes=_volumes(spec),
        cidr=spec.network.cidr,
        egress=spec.network.egress,
        tags=spec.tags,
        image=names.image(spec.software.slurm),
    )


def node_count(group: NodeGroup) -> int:
    """Return how many nodes of a group always exist; those between min and max come and go with the queue."""
    return group.count if group.count is not None else group.min or 0


def _volumes(spec: ClusterSpec) -> tuple[PlannedVolume, ...]:
    """Return the filesystems, `/shared` first: the Inventory's first mount holds homes, jobs and environments."""
    ordered = sorted(spec.storage.items(), key=lambda item: item[1].mount != "/shared")
    return tuple(PlannedVolume(name=name, mount=s.mount, size_gb=s.size_gb) for name, s in ordered)
