"""The section `azure` of a spec: subscription, region, who may log in, and the size of each machine."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from cluster.spec import ClusterSpec
from cluster.spec.base import SpecModel, ValueDescription, field
from cluster.spec.patterns import Name
from infra.targets.rented import section

SECTION = "azure"
LOGIN_FIX = "run `az login`, or set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET"
ADMIN, ADMIN_UID = "clusteradmin", 1000
"""The account that Azure requires and creates first on every machine; muster logs in as root."""
SLURM_IMAGE = "the id of a gallery's image version that has Slurm (docs/azure.md)"
SUBSCRIPTION = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
MARKETPLACE = re.compile(r"^(?P<publisher>[\w.-]+):(?P<offer>[\w.-]+):(?P<sku>[\w.-]+):(?P<version>[\w.]+)$")
GALLERY = re.compile(
    r"^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/]+/providers/Microsoft\.Compute"
    r"/galleries/[^/]+/images/[^/]+/versions/(?P<version>[\w.]+)$"
)

FilesystemSku = Literal[
    "AMLFS-Durable-Premium-40", "AMLFS-Durable-Premium-125", "AMLFS-Durable-Premium-250", "AMLFS-Durable-Premium-500"
]
DiskSku = Literal["Premium_LRS", "StandardSSD_LRS", "Standard_LRS"]


class AzureMachine(SpecModel):
    """The hardware of a virtual machine."""

    size: str = field("size of the machine", "replace", min_length=1, examples=["Standard_D8s_v5"])


class Azure(SpecModel):
    """Where the machines of a cluster on Azure are created, and their hardware."""

    subscription: Annotated[str, ValueDescription("an id, as `az account list` prints it")] = field(
        "subscription in which everything is created",
        "forbidden",
        pattern=SUBSCRIPTION,
        examples=["00000000-0000-0000-0000-000000000000"],
    )
    region: Annotated[str, ValueDescription("a region in lower-case letters and digits, such as eastus")] = field(
        "region", "forbidden", pattern=r"^[a-z0-9]+$", examples=["eastus"]
    )
    zone: Literal["1", "2", "3"] | None = field(
        "availability zone of machines and filesystems; without one, Azure chooses for machines, and filesystems have "
        "none, which regions with zones refuse",
        "forbidden",
        default=None,
        examples=["1"],
    )
    ssh_from: tuple[str, ...] = field(
        "address ranges that may connect to SSH; of this machine, at least",
        "safe",
        strict=False,
        min_length=1,
        max_length=8,
        examples=[["203.0.113.7/32"]],
    )
    public_addresses: bool = field(
        "whether machines have public addresses; without them, muster runs on a machine in the same network",
        "replace",
        default=True,
    )
    image: Annotated[str, ValueDescription("PUBLISHER:OFFER:SKU:VERSION or the id of a gallery's image version")] = (
        field(
            "image of all machines: Ubuntu 22.04 or 24.04 or Debian 12 or 13 with Slurm, and for GPUs NVIDIA's "
            "drivers, InfiniBand's and the Lustre client: for example an image of your own, built on "
            "microsoft-dsvm:ubuntu-hpc, which has all these but Slurm (docs/azure.md)",
            "replace",
            min_length=1,
            examples=[
                "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/images/providers/Microsoft.Compute"
                "/galleries/slurm/images/ubuntu-hpc/versions/1.0.0"
            ],
        )
    )
    disk_sku: DiskSku = field("kind of boot disks", "replace", default="Premium_LRS")
    filesystem_sku: FilesystemSku = field(
        "kind of Lustre filesystems; the number is their MB/s per TiB", "forbidden", default="AMLFS-Durable-Premium-250"
    )
    controller: AzureMachine = field(
        "machine of the controller",
        "replace",
        default=AzureMachine(size="Standard_D8s_v5"),
        examples=[{"size": "Standard_D8s_v5"}],
    )
    login: AzureMachine = field(
        "machine of the login node",
        "replace",
        default=AzureMachine(size="Standard_D4s_v5"),
        examples=[{"size": "Standard_D4s_v5"}],
    )
    groups: dict[Name, AzureMachine] = field(
        "machines of each node group, by the group's name",
        "replace",
        min_length=1,
        examples=[{"gpu": {"size": "Standard_ND96isr_H100_v5"}}],
    )


def azure_section(spec: ClusterSpec) -> Azure | None:
    """Return the section `azure` of a spec."""
    return spec.section(SECTION, Azure)


def require_section(spec: ClusterSpec) -> Azure:
    """Return the section of a valid spec."""
    return section.require_section(spec, SECTION, Azure)
