"""What Azure's answers say about a resource. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_POWER = "PowerState/"
_RUNNING = frozenset({"running", "starting"})


def is_running(machine: Mapping[str, Any]) -> bool:
    """Return whether a machine runs, by its instance view; one whose state is unknown counts as running."""
    power = read_power(machine)
    return not power or power in _RUNNING


def read_power(machine: Mapping[str, Any]) -> str:
    """Return the power state of a machine, such as running; empty if it has none, because it was never placed."""
    statuses = machine.get("properties", {}).get("instanceView", {}).get("statuses", [])
    codes = (str(status.get("code", "")) for status in statuses)
    return next((code.removeprefix(_POWER) for code in codes if code.startswith(_POWER)), "")


def read_machine_id(machine: Mapping[str, Any]) -> str:
    """Return the id that no other machine ever has; ids of the API are names, which a later machine can have, too."""
    return str(machine.get("properties", {}).get("vmId", ""))


def read_address(resource: Mapping[str, Any]) -> str:
    """Return the address of an interface inside the network, or of a public address; empty if it has none."""
    properties = resource.get("properties", {})
    for configured in properties.get("ipConfigurations", []):
        return str(configured.get("properties", {}).get("privateIPAddress", ""))
    return str(properties.get("ipAddress", ""))
