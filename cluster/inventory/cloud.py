"""What a machine that sets itself up must know beside spec and inventory: its state volume, filesystems, names."""

from __future__ import annotations

from typing import Literal

from cluster.inventory.model import Part


class Filesystem(Part):
    """A shared filesystem that every node mounts."""

    kind: Literal["lustre", "efs", "nfs"]
    mount: str
    host: str
    """Name or address of its server."""
    export: str = ""
    """What of it is mounted: the mount name of a Lustre filesystem, the path of an NFS export."""
    efa: bool = False


class Cloud(Part):
    """Written once by the engine, shipped in the bundle of the nodes."""

    region: str
    bucket: str
    """Holds the bundle, the fleet, and what the controller builds for the others."""
    domain: str
    """In which every node has a name."""
    state_volume: str | None = None
    """Id of the volume that outlives the controller: the queue and the accounts are on it."""
    filesystems: tuple[Filesystem, ...] = ()
    image_fix: str = ""
    """How a person chooses another machine image, as an error message says it."""
