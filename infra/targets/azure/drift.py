"""Whether something on Azure is as it was sent. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a spec decides about a machine, a scale set or a filesystem; other settings are the same for all.
_SETTINGS = frozenset(
    {"sku", "zones", "hardwareProfile", "storageProfile", "singlePlacementGroup", "storageCapacityTiB"}
)


def differs(sent: Any, existing: Any) -> bool:
    """Return whether anything that was sent is otherwise; what Azure adds to objects does not count.

    Lists must have the same entries: a security rule that somebody has added is a difference. Entries with a name are
    compared by it, others in the same order; text in any case, because Azure does not keep it in ids.
    """
    if isinstance(sent, dict):
        return not isinstance(existing, dict) or any(differs(value, existing.get(key)) for key, value in sent.items())
    if isinstance(sent, list):
        if not isinstance(existing, list) or len(sent) != len(existing):
            return True
        pairs = zip(_sort(sent), _sort(existing), strict=True)
        return any(differs(entry, other) for entry, other in pairs)
    if isinstance(sent, str) and isinstance(existing, str):
        return sent.casefold() != existing.casefold()
    return bool(sent != existing)


def is_outdated(body: Mapping[str, Any], existing: Mapping[str, Any]) -> bool:
    """Return whether a resource was created from another spec: with another size, image, disk, place or capacity."""
    return differs(_select(body), existing) or has_public_address(body) != has_public_address(existing)


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


def _sort(entries: list[Any]) -> list[Any]:
    if all(isinstance(entry, dict) and "name" in entry for entry in entries):
        return sorted(entries, key=lambda entry: str(entry["name"]))
    return entries
