"""What exists: nodes, roles, addresses, GPUs, fabric, mounts. Nothing after it knows which target made it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["controller", "login", "compute"]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeGpus(Part):
    count: int = 0
    kind: Literal["real", "simulated"] = "simulated"
    type: str = "h100"
    devices: tuple[str, ...] = ()
    """Character devices, one per GPU: what gres.conf names."""


class Node(Part):
    name: str
    role: Role
    group: str | None = None
    address: str
    host_key: str
    """The node's public SSH host key (`ssh-ed25519 AAAA...`), pinned when the node was created."""
    machine_id: str
    """Changes when the machine behind the name is another one (container id, instance id)."""
    ssh_user: str = "root"
    ssh_port: int = 22
    cpus: int
    memory_mb: int
    gpus: NodeGpus = NodeGpus()
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"


class NodeSet(Part):
    """Equal nodes that are launched by name, `<group>-1` to `<group>-<count>`, some always there, some on demand."""

    group: str
    count: int
    static: int
    """The first so many are never given back."""
    cpus: int
    memory_mb: int
    gpus: NodeGpus = NodeGpus()
    fabric: Literal["tcp", "efa", "infiniband"] = "tcp"
    instance_type: str = ""
    nvlinks: int = 0
    """NVLink links of each GPU; 0 where the machine has none."""
    efa_devices: int = 0
    busbw: dict[int, float] = {}
    """GB/s of bus bandwidth that an all-reduce over several nodes should reach, by message size in bytes."""
    host_key: str = ""
    """The public SSH host key that all of them show."""


class Inventory(Part):
    cluster: str
    target: str
    nodes: tuple[Node, ...]
    sets: tuple[NodeSet, ...] = ()
    """Compute nodes of targets that launch them by name; empty where `nodes` holds every machine."""
    mounts: tuple[str, ...] = ("/shared",)
    """Shared filesystems, already mounted on every node; the first holds homes, jobs and environments."""
    single_host: bool = False
    """Whether all nodes run on one machine, so that Slurm can afford to look for work at short intervals."""

    @property
    def controller(self) -> Node:
        return next(n for n in self.nodes if n.role == "controller")

    @property
    def login(self) -> Node:
        """The node people log in to: the controller where there is no login node."""
        return next((n for n in self.nodes if n.role == "login"), self.controller)

    @property
    def compute(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.role == "compute")
