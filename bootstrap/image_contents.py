"""What an image of machines contains: data without names, addresses and keys, so that it fits every cluster."""

from __future__ import annotations

from typing import Literal

from cluster.inventory import InventoryModel, PackageRepository, Role

RECORD = "/opt/muster/image.json"
"""The ImageRecord on machines that start from a baked image."""


class ImageContents(InventoryModel):
    """What is installed in an image."""

    roles: tuple[Role, ...]
    """Roles of the nodes that can start from it."""
    slurm: str
    """Release of Slurm."""
    cloud: bool = True
    """Whether it is for cloud machines, which also need what their steps install: filesystem clients, a compiler."""
    filesystems: tuple[Literal["lustre", "efs", "nfs"], ...] = ()
    """Kinds of shared filesystems whose clients it has."""
    lustre_client: PackageRepository | None = None
    package_store: tuple[str, ...] = ()
    """Command of the machine that builds the image, with which it fetches packages of Slurm that exist already."""


class ImageRecord(InventoryModel):
    """What an image says about itself, as a file in it."""

    contents: ImageContents
    digest: str
    """Digest of everything that was done to install the contents."""
    bundle: str
    """Digest of the bundle that built it."""
    built: str
    """Time, ISO 8601 in UTC."""
