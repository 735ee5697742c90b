"""The names that machines of a rehearsal resolve: the cluster's private zone, and AWS's services and filesystems."""

from __future__ import annotations

import re
from typing import Any

from infra.targets.aws.rehearse.machine import API_ADDRESS

_AWS = ".amazonaws.com"
_EFS = re.compile(r"(fs-[0-9a-f]+)\.efs\.[a-z0-9-]+\.amazonaws\.com")


def resolve_name(name: str, zones: Any, file_systems: Any) -> str | None:
    """Return the address of a name by Route 53's zones and EFS's filesystems, as moto stores them."""
    if match := _EFS.fullmatch(name):
        file_system = file_systems.get(match[1])
        # A filesystem has a name once it has a mount target.
        return API_ADDRESS if file_system and file_system.number_of_mount_targets else None
    if name.endswith(_AWS):
        return API_ADDRESS
    for zone in zones.values():
        for record in zone.rrsets:
            if record.type == "A" and record.name.rstrip(".").lower() == name:
                value = record.records[0]
                return str(value["Value"] if isinstance(value, dict) else value)
    return None
