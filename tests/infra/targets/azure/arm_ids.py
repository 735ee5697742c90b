"""Ids of resources on Azure: their parts, their types, and where bodies refer to them."""

from __future__ import annotations

import re
from typing import Any

SCALE_SET, MACHINE = "microsoft.compute/virtualmachinescalesets", "microsoft.compute/virtualmachines"
GROUP, FILESYSTEM = "microsoft.resources/resourcegroups", "microsoft.storagecache/amlfilesystems"
INTERFACE, ADDRESS = "microsoft.network/networkinterfaces", "microsoft.network/publicipaddresses"
IN_USE = {
    "microsoft.network/virtualnetworks": "InUseSubnetCannotBeDeleted",
    "microsoft.network/networksecuritygroups": "InUseNetworkSecurityGroupCannotBeDeleted",
    "microsoft.network/natgateways": "NatGatewayInUseBySubnet",
    ADDRESS: "PublicIPAddressCannotBeDeleted",
    INTERFACE: "NicInUse",
}
ID = re.compile(
    r"^/subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)"
    r"(?:/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)(?P<rest>/.*)?)?$",
    re.IGNORECASE,
)


def list_references(body: Any) -> list[str]:
    """Return all ids of resources of the network or storage that a body refers to."""
    if isinstance(body, dict):
        own = [body["id"]] if set(body) <= {"id", "properties"} and "id" in body else []
        subnet = [body["filesystemSubnet"]] if "filesystemSubnet" in body else []
        ids = own + subnet + [ref for value in body.values() for ref in list_references(value)]
        return [ref for ref in ids if "/galleries/" not in ref]
    return [ref for entry in body for ref in list_references(entry)] if isinstance(body, list) else []


def is_at(reference: str, id_: str) -> bool:
    return reference.casefold() == id_.casefold() or reference.casefold().startswith(f"{id_}/subnets/".casefold())


def read_model(scale_set: dict[str, Any]) -> Any:
    """Return what instances of a scale set are created from."""
    return scale_set["sku"]["name"], scale_set["properties"]["virtualMachineProfile"]


def read_type(id_: str) -> str:
    match = ID.match(id_)
    return match["type"] if match and match["type"] else "Microsoft.Resources/resourceGroups"
