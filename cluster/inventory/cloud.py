"""Data that a machine needs to set itself up, in addition to spec and inventory.

The target fills it in, so that bootstrap does not depend on any target.
"""

from __future__ import annotations

from typing import Literal

from cluster.inventory.model import InventoryModel


class Filesystem(InventoryModel):
    """A shared filesystem that every node mounts."""

    kind: Literal["lustre", "efs", "nfs"]
    """`efs` is NFS 4.1 through a TLS tunnel."""
    mount: str
    """Mount point on the nodes."""
    host: str
    """Name or address of the server."""
    export: str = ""
    """Source on the server: the mount name of a Lustre filesystem, or the path of an NFS export."""
    efa: bool = False
    """Whether clients with EFA may use it for Lustre's traffic."""


class PackageRepository(InventoryModel):
    """An apt repository with its own signing key."""

    url: str
    key_url: str
    fingerprint: str
    """Of the key in the file at `key_url`; other keys there are not trusted."""


class InterpreterArchive(InventoryModel):
    """A build of Python for one kind of machine; the archive has one folder, `python`."""

    url: str
    sha256: str


class Interpreter(InventoryModel):
    """A pinned Python that runs from any folder and has its headers."""

    version: str
    archives: dict[str, InterpreterArchive]
    """Builds by machine, as `uname -m` prints it."""


class JobCredentials(InventoryModel):
    """Credentials for the users' programs on compute and login nodes; those of the machine are only for root."""

    command: tuple[str, ...]
    """Command that fetches new ones and stores them; root runs it at boot and at intervals."""
    interval_s: int
    environment: dict[str, str]
    """Variables with which programs find them."""


class Cloud(InventoryModel):
    """The cloud data in the bundle of a machine that sets itself up.

    A target may add fields for code that runs only on its machines.
    """

    domain: str
    """DNS domain in which every node has a name."""
    state_volume: str | None = None
    """Id of the disk that outlives the controller; the queue and the accounting database are on it."""
    filesystems: tuple[Filesystem, ...] = ()
    time_server: str = ""
    """Address of an NTP server that every machine reaches, even without a route to the internet."""
    scratch_disk_model: str = ""
    """Model, as the kernel reports it, of disks that belong to the machine and are lost with it."""
    lustre_client: PackageRepository | None = None
    """Where packages of the Lustre client for the machines' kernels come from."""
    interpreter: Interpreter | None = None
    """Python of the training environment; None for the distribution's own."""
    package_store: tuple[str, ...] = ()
    """Command that shares packages between nodes; the arguments `NAME fetch|store PATH` are appended to it."""
    interruption_watch: tuple[str, ...] = ()
    """Command that ends when the cloud announces that it takes the machine back, and prints when; or at once, silently,
    if it never will."""
    controller_timeout_s: float = 1800.0
    """How long a machine waits for slurmctld before it starts its own daemon: both may have been created together."""
    job_credentials: JobCredentials | None = None
    log_shipper: tuple[str, ...] = ()
    """Command that stores the machine's logs where they outlive it."""
    image_fix: str = ""
    """How to choose another machine image, as the beginning of a sentence for error messages."""
