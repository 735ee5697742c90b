"""What a stack's Pulumi state says about its cluster on Nebius."""

from __future__ import annotations

import json
from pathlib import Path

from cluster import names

_RESOURCE = "muster:NebiusResource"


def read_cluster(state: Path) -> tuple[str, str] | None:
    """Return the cluster and the project of the resources in a state; None if it has none or cannot be read."""
    try:
        resources = json.loads(state.read_text())["checkpoint"]["latest"].get("resources") or []
        for entry in resources:
            if entry.get("type", "").endswith(_RESOURCE):
                inputs = entry["inputs"]
                return str(inputs["labels"][names.CLUSTER]), str(inputs["project"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None
