"""The kinds of resources that a cluster has on Azure: types and API versions, and what can change in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RESOURCES_API, COMPUTE_API, NETWORK_API, STORAGE_API = "2024-03-01", "2026-04-01", "2026-03-01", "2026-08-01"
DISKS_API, GALLERIES_API, SKUS_API, SCALE_SET_NETWORK_API = "2026-03-02", "2026-03-03", "2021-07-01", "2018-10-01"


@dataclass(frozen=True)
class Kind:
    """A kind of resource."""

    name: str
    """In messages and receipts."""
    type: str
    """Namespace and type, as in ids."""
    api: str
    updatable: bool = False
    """Whether its body can change in place; otherwise a change needs another resource."""
    watched: bool = False
    """Whether a refresh compares its body with what exists."""
    timeout_s: float = 600.0
    has_address: bool = False
    """Whether others need an address that Azure gives it."""
    in_zone: bool = False
    """Whether it is in the spec's zone; of others, Azure chooses the zones."""


GROUP = Kind("resource group", "Microsoft.Resources/resourceGroups", RESOURCES_API, updatable=True)
SCALE_SET = Kind("scale set", "Microsoft.Compute/virtualMachineScaleSets", COMPUTE_API, timeout_s=3600.0, in_zone=True)
MACHINE = Kind("machine", "Microsoft.Compute/virtualMachines", COMPUTE_API, timeout_s=1800.0, in_zone=True)
FILESYSTEM = Kind(
    "filesystem",
    "Microsoft.StorageCache/amlFilesystems",
    STORAGE_API,
    timeout_s=3600.0,
    has_address=True,
    in_zone=True,
)
# In the order of removal: what comes later is used by what comes before it.
_KINDS = (
    SCALE_SET,
    MACHINE,
    Kind("network interface", "Microsoft.Network/networkInterfaces", NETWORK_API, has_address=True),
    # Azure creates boot disks with machines, and removes them with those.
    Kind("disk", "Microsoft.Compute/disks", DISKS_API),
    FILESYSTEM,
    Kind("network", "Microsoft.Network/virtualNetworks", NETWORK_API, updatable=True, watched=True),
    Kind("NAT gateway", "Microsoft.Network/natGateways", NETWORK_API, updatable=True),
    Kind("public address", "Microsoft.Network/publicIPAddresses", NETWORK_API, has_address=True),
    Kind("security group", "Microsoft.Network/networkSecurityGroups", NETWORK_API, updatable=True, watched=True),
    GROUP,
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}


def find_kind(type_: str) -> Kind | None:
    """Return the kind of a type, in any case: the API does not keep it."""
    return next((kind for kind in _KINDS if kind.type.casefold() == type_.casefold()), None)
