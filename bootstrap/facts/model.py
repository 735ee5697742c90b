"""The facts of one node as plain data, so that the decisions of steps can be tested without a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm.config.render import Cgroup
from slurm.control.nodes import NodeState
from slurm.rdma.sysfs import RdmaFacts


@dataclass(frozen=True)
class FileFact:
    """A file on the node."""

    sha256: str
    mode: int
    owner: str
    """Owner as `user:group`."""


@dataclass(frozen=True)
class UserFact:
    """An account in /etc/passwd."""

    uid: int
    comment: str
    home: str
    shell: str


@dataclass(frozen=True)
class Disk:
    """An NVMe disk."""

    path: str
    serial: str
    model: str


@dataclass(frozen=True)
class Home:
    """A user's home on the shared filesystem."""

    uid: int
    trusted: bool
    """Whether the user's own key is authorized for the user's account, so that SSH between nodes works."""


@dataclass(frozen=True)
class Facts:
    """Everything that steps know about a node."""

    files: Mapping[str, FileFact] = field(default_factory=dict)
    """Files that muster manages, by path."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """Digest of the configuration that each daemon last loaded, written after its restart or reconfigure."""
    enabled: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    """Units that systemd has loaded, running or failed: only these need a reload after their file changes."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Version by name of installed distribution packages."""
    users: Mapping[str, UserFact] = field(default_factory=dict)
    homes: Mapping[str, Home] = field(default_factory=dict)
    cgroup: Cgroup = "none"
    hostname: str = ""
    container: bool = False
    hosts_merged: bool = False
    """Whether /etc/hosts contains the names of the cluster's nodes."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Filesystem type by mount point."""
    mount_sources: Mapping[str, str] = field(default_factory=dict)
    """What is mounted, by mount point: a device, or server and folder."""
    environment_complete: bool = False
    bundle: str = ""
    """Digest of the bundle on the shared filesystem."""
    slurm_nodes: Mapping[str, NodeState] | None = None
    """Nodes as Slurm sees them; None if slurmctld does not run."""
    associations: frozenset[tuple[str, str, str]] = frozenset()
    """Cluster, account and user of each association in the accounting database."""
    admins: frozenset[str] = frozenset()
    job_network: str = ""
    """`closed` if the rules between users are loaded, `open: <reason>` if the kernel cannot; empty if not tried."""
    distribution: str = ""
    """Name and version, e.g. `ubuntu 22.04`. This and the fields below are read only from cloud machines."""
    kernel: str = ""
    disks: tuple[Disk, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    """Output of each component's version command, by component of the software table."""
    rdma: RdmaFacts = field(default_factory=RdmaFacts)
    """RDMA ports; read only from nodes whose fabric uses them."""
    clock: float = 0.0
    """The node's time when the facts were read, in seconds since the epoch."""
