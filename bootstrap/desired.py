"""The desired state of a cluster's nodes: inventory, spec, secrets, and what is shipped from the repository."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from bootstrap.bundle import Bundle, pack_shared
from bootstrap.training_environment import environment_folder
from cluster.inventory import Cloud, Interpreter, Inventory
from cluster.spec import ClusterSpec
from slurm.config.render import Cgroup, File, render_files


@dataclass(frozen=True)
class Secrets:
    """Keys and passwords of one cluster."""

    slurm_key: bytes = field(repr=False)
    """Content of slurm.key or, while the key is rotated, of slurm.jwks."""
    db_password: str = field(repr=False)
    ssh_public_key: str
    """Public half of the cluster's SSH key; added to every user's authorized keys."""
    host_key: str = field(default="", repr=False)
    """Private SSH host key; set only if the machine could not get one before it started."""
    webhook: str = field(default="", repr=False)
    """Address that gets alerts; empty without one, and on nodes other than the controller."""

    def __post_init__(self) -> None:
        # Slurm's configuration parser and SQL have different quoting rules; these characters need no quotes in either.
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.db_password):
            raise ValueError("db_password: only letters, digits, _ and - are allowed (value not shown)")


@dataclass(frozen=True)
class Desired:
    """The desired state of a cluster's nodes, which steps compare with the facts."""

    inventory: Inventory
    spec: ClusterSpec
    secrets: Secrets
    root: Path
    """The repository, or its copy on a node: source of the training lock, the bundle and our scripts."""
    cloud: Cloud | None = None
    """Set for machines that set themselves up; None if they are set up from outside over SSH."""
    fleet: bytes = b""
    """What the controller may launch, in the form that the target's launcher reads; empty if it launches nothing."""
    launcher: str = ""
    """Python module of the target's launcher, which Slurm's power programs run."""
    cgroup: Cgroup = "v2"
    """Kind of cgroup that Slurm can use on all compute nodes; `plan` sets it from the facts."""

    @property
    def shared(self) -> str:
        """Mount point of the shared filesystem with jobs and environments."""
        return self.inventory.mounts[0]

    @cached_property
    def lock(self) -> bytes:
        """Content of the training environment's lock file."""
        return (self.root / self.spec.software.training_lock).read_bytes()

    @property
    def interpreter(self) -> Interpreter | None:
        """Python of the training environment; None for the distribution's own."""
        return self.cloud.interpreter if self.cloud else None

    @property
    def environment(self) -> str:
        """Folder of the training environment that lock file and interpreter define."""
        return environment_folder(self.shared, self.lock, self.interpreter)

    @cached_property
    def bundle(self) -> Bundle:
        return pack_shared(self.root, self.environment)

    @cached_property
    def slurm_files(self) -> dict[str, File]:
        """Slurm's configuration files by path."""
        return render_files(self.inventory, self.spec, cgroup=self.cgroup, db_password=self.secrets.db_password)

    @property
    def homes(self) -> str:
        """Folder of the homes: on the storage named `home` if there is one, because Lustre is slow with small files."""
        storage = self.spec.storage.get("home")
        return storage.mount if storage else f"{self.shared}/home"

    def home(self, user: str) -> str:
        """Return the home folder of a user."""
        return f"{self.homes}/{user}"
