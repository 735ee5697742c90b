"""What a cluster's nodes should be: inventory, spec, secrets, and what is shipped to them from the repository."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from bootstrap.bundle import Bundle, pack
from cluster.inventory import Cloud, Inventory
from cluster.spec import ClusterSpec
from slurm.config.render import Cgroup, File, render_files


@dataclass(frozen=True)
class Secrets:
    slurm_key: bytes = field(repr=False)
    db_password: str = field(repr=False)
    ssh_public_key: str
    host_key: str = field(default="", repr=False)
    """Private; only where the machine cannot be given one before it starts."""

    def __post_init__(self) -> None:
        # Slurm's configuration parser and SQL quote differently; these characters need no quoting in either.
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.db_password):
            raise ValueError("db_password: only letters, digits, _ and - (value not shown)")


@dataclass(frozen=True)
class Desired:
    inventory: Inventory
    spec: ClusterSpec
    secrets: Secrets
    root: Path
    """The repository: the training lock, the bundle and our scripts come from here."""
    cloud: Cloud | None = None
    """Of machines that set themselves up; None where they are set up from outside."""
    fleet: bytes = b""
    """What the controller may launch, in the form that the target's launcher reads."""
    launcher: str = ""
    """Module of the target's launcher, which Slurm's power programs run."""
    cgroup: Cgroup = "v2"
    """What Slurm can use on all compute nodes; apply and drift set it from the facts."""

    @property
    def shared(self) -> str:
        return self.inventory.mounts[0]

    @cached_property
    def lock(self) -> bytes:
        return (self.root / self.spec.software.training_lock).read_bytes()

    @property
    def environment(self) -> str:
        """Where the training environment of this lock file lives."""
        return f"{self.shared}/env/{sha256(self.lock).hexdigest()[:16]}"

    @cached_property
    def bundle(self) -> Bundle:
        return pack(self.root, self.environment)

    @cached_property
    def slurm_files(self) -> dict[str, File]:
        return render_files(self.inventory, self.spec, cgroup=self.cgroup, db_password=self.secrets.db_password)

    @property
    def homes(self) -> str:
        """On the storage called `home`, where there is one: many small files are not what Lustre is good at."""
        own = self.spec.storage.get("home")
        return own.mount if own else f"{self.shared}/home"

    def home(self, user: str) -> str:
        return f"{self.homes}/{user}"
