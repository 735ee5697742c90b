"""Whether something on Azure was created from another spec. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.targets.azure.kinds import Kind
from infra.targets.rented.comparison import differs

# What a spec decides about a machine, a scale set or a filesystem; other settings are the same for all.
_SETTINGS = frozenset({"sku", "hardwareProfile", "storageProfile", "singlePlacementGroup", "storageCapacityTiB"})


def is_outdated(kind: Kind, body: Mapping[str, Any], existing: Mapping[str, Any]) -> bool:
    """Return whether a resource was created from another spec: with another size, image, disk, zone or capacity.

    What the spec no longer has is not in the body at all, so zones and public addresses are compared both ways.
    """
    return (
        differs(_select(body), existing)
        or (kind.in_zone and _list_zones(body) != _list_zones(existing))
        or has_public_address(body) != has_public_address(existing)
    )


def without_disk(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a machine without its disk, whose size Azure does not report while the machine is stopped."""
    properties = body.get("properties", {})
    profile = {key: value for key, value in properties.get("storageProfile", {}).items() if key != "osDisk"}
    return {**body, "properties": {**properties, "storageProfile": profile}}


def has_public_address(body: Any) -> bool:
    """Return whether a machine, a scale set or an interface, or a part of its body, has a public address."""
    if isinstance(body, dict):
        return any(
            (key.startswith("publicIPAddress") and value) or has_public_address(value) for key, value in body.items()
        )
    return isinstance(body, list) and any(map(has_public_address, body))


def _select(body: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: _select(body[key]) for key in ("properties", "virtualMachineProfile") if key in body}
    return {key: value for key, value in body.items() if key in _SETTINGS} | inner


def _list_zones(body: Mapping[str, Any]) -> list[str]:
    return sorted(body.get("zones") or ())
