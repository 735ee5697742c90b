"""The facts of one node. Plain data, so that a step's decision can be tested without a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm.config.render import Cgroup
from slurm.control.nodes import NodeState


@dataclass(frozen=True)
class FileFact:
    sha256: str
    mode: int
    owner: str


@dataclass(frozen=True)
class UserFact:
    uid: int
    comment: str
    home: str
    shell: str


@dataclass(frozen=True)
class Disk:
    path: str
    serial: str
    model: str


@dataclass(frozen=True)
class Home:
    uid: int
    trusted: bool
    """The user's own key opens the user's own account: SSH between nodes works."""


@dataclass(frozen=True)
class Facts:
    files: Mapping[str, FileFact] = field(default_factory=dict)
    markers: Mapping[str, str] = field(default_factory=dict)
    """What a daemon was last told, by name: a digest written after the restart or reconfigure that applied it."""
    enabled: frozenset[str] = frozenset()
    active: frozenset[str] = frozenset()
    loaded: frozenset[str] = frozenset()
    """Units that systemd holds in memory, running or failed: only these need a reload to see a new file."""
    packages: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, UserFact] = field(default_factory=dict)
    homes: Mapping[str, Home] = field(default_factory=dict)
    cgroup: Cgroup = "none"
    hostname: str = ""
    container: bool = False
    hosts_merged: bool = False
    mounted: bool = False
    environment_complete: bool = False
    bundle: str = ""
    slurm_nodes: Mapping[str, NodeState] | None = None
    """None where slurmctld does not run."""
    associations: frozenset[tuple[str, str, str]] = frozenset()
    admins: frozenset[str] = frozenset()
    distribution: str = ""
    """Name and version, such as `ubuntu 22.04`. From here on: only of machines that set themselves up."""
    kernel: str = ""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Kind of filesystem by where it is mounted."""
    disks: tuple[Disk, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    """What components of the lock table say of themselves, as they say it."""
    clock: float = 0.0
