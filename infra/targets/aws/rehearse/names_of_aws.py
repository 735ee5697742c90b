"""The names that machines of a rehearsal resolve: the cluster's private zone, AWS's services, and public servers."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from infra.targets.aws.rehearse.machine import API_ADDRESS, MIRROR_ADDRESS

_AWS = ".amazonaws.com"
_FILE_SYSTEM = re.compile(r"(fs-[0-9a-f]+)\.(efs|fsx)\.[a-z0-9-]+\.amazonaws\.com")


def resolve_name(name: str, zones: Any, file_systems: Collection[str], public: Collection[str]) -> str | None:
    """Return the address of a name: of a Route 53 zone as moto stores it, or a stand-in of AWS or of a public server.

    `file_systems` are the ids of those that can be mounted: the others have no name yet.
    """
    if match := _FILE_SYSTEM.fullmatch(name):
        return API_ADDRESS if match[1] in file_systems else None
    if name in public:
        return MIRROR_ADDRESS
    if name.endswith(_AWS):
        return API_ADDRESS
    for zone in zones.values():
        for record in zone.rrsets:
            if record.type == "A" and record.name.rstrip(".").lower() == name:
                value = record.records[0]
                return str(value["Value"] if isinstance(value, dict) else value)
    return None
