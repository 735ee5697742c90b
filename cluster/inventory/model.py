"""The inventory: nodes, roles, addresses, GPUs, fabric and mounts of a cluster that exists.

Code that reads the inventory does not need to know which target built the cluster.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["controller", "login", "compute"]


class InventoryModel(BaseModel):
    """Base of the inventory's models: immutable, unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeGpus(InventoryModel):
    """The GPUs of one node."""

    count: int = 0
    kind: Literal["real", "simulated"] = "simulated"
    type: str = "h100"
    devices: tuple[str, ...] = ()
    """Character devices for gres.conf, one per GPU."""


class Adopted(InventoryModel):
    """The owner's side of a machine that exists before the cluster and is given back after it."""

    hostname: str
    """Its host name, which it keeps."""
    user: str
    """User as whom muster adopts and releases it, who may always log in."""


class Node(InventoryModel):
    """One machine of the cluster."""

    name: str
    role: Role
    group: str | None = None
    address: str
    host_key: str
    """Public SSH host key (`ssh-ed25519 AAAA...`), pinned when the node was created."""
    machine_id: str
    """Container or instance id: changes when another machine takes over the name."""
    ssh_user: str = "root"
    ssh_port: int = 22
    ssh_address: str = ""
    """Address for SSH from here, if it is another one than the nodes use among each other."""
    cpus: int
    memory_mb: int
    gpus: NodeGpus = NodeGpus()
    fabric: Literal["tcp", "efa", "infiniband", "roce"] = "tcp"
    place: tuple[str, ...] = ()
    """Switches above the node, from the top down, for Slurm's topology; empty if unknown."""
    adopted: Adopted | None = None
    """Set for a machine that muster did not create; None if it is created and removed with the cluster."""

    @property
    def root_maintains(self) -> bool:
        """Whether those who repair the machine log in as root, which works even if no user can log in."""
        return self.ssh_user == "root" and (self.adopted is None or self.adopted.user == "root")

    @property
    def login_address(self) -> str:
        """The address for SSH from here."""
        return self.ssh_address or self.address


class NodeSet(InventoryModel):
    """Identical compute nodes that are launched by name, from `<group>-1` to `<group>-<count>`."""

    group: str
    count: int
    static: int
    """Number of nodes, from the first, that always run; the others are launched on demand."""
    cpus: int
    cores: int = 0
    """Physical cores; set together with `sockets`."""
    sockets: int = 0
    """CPU sockets; 0 if unknown, and Slurm then treats each CPU as a core of its own socket."""
    memory_mb: int
    gpus: NodeGpus = NodeGpus()
    fabric: Literal["tcp", "efa", "infiniband", "roce"] = "tcp"
    instance_type: str = ""
    nvlinks: int = 0
    """NVLink links per GPU; 0 for machines without NVLink."""
    ultraserver: bool = False
    """Whether all nodes of the set are in one UltraServer, whose NVLink connects the GPUs of all its machines."""
    efa_devices: int = 0
    busbw: dict[int, float] = {}
    """Expected bus bandwidth of an all-reduce across nodes, in GB/s, by message size in bytes."""
    host_key: str = ""
    """Public SSH host key that all nodes of the set share; only in inventories that older versions wrote."""
    host_keys: tuple[str, ...] = ()
    """Public SSH host keys of the nodes, that of `<group>-1` first."""

    def find_host_key(self, name: str) -> str:
        """Return the public SSH host key of a node of the set."""
        return self.host_keys[int(name.rpartition("-")[2]) - 1] if self.host_keys else self.host_key

    @property
    def known_hosts(self) -> dict[str, str]:
        """Public SSH host keys by node name, or by the pattern of all names if the nodes share one."""
        if self.host_keys:
            return {f"{self.group}-{number}": key for number, key in enumerate(self.host_keys, 1)}
        return {f"{self.group}-*": self.host_key} if self.host_key else {}


class ServedFilesystem(InventoryModel):
    """A shared filesystem that one of the nodes serves to the others by NFS."""

    mount: str
    node: str
    """Name of the node that serves it."""
    folder: str
    """Where its files are on that node."""


class Inventory(InventoryModel):
    """All machines of a cluster."""

    cluster: str
    target: str
    nodes: tuple[Node, ...]
    sets: tuple[NodeSet, ...] = ()
    """Compute nodes that are launched by name; empty if `nodes` holds every machine."""
    mounts: tuple[str, ...] = ("/shared",)
    """Mount points of the shared filesystems; the first one holds homes, jobs and environments."""
    served: tuple[ServedFilesystem, ...] = ()
    """Those of the mounts that a node serves; all others exist without the cluster."""
    metadata_addresses: tuple[str, ...] = ()
    """IP addresses of the service that gives a machine its credentials and user data; only root may reach them."""
    single_host: bool = False
    """Whether all nodes run on one machine, so that Slurm can look for work often, and its load delays all of them."""

    @property
    def controller(self) -> Node:
        return next(n for n in self.nodes if n.role == "controller")

    @property
    def login(self) -> Node:
        """The node that users log in to; the controller if there is no login node."""
        return next((n for n in self.nodes if n.role == "login"), self.controller)

    @property
    def compute(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.role == "compute")
