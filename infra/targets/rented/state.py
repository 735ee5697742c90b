"""What a stack's Pulumi state says about its cluster in a cloud."""

from __future__ import annotations

import json
from pathlib import Path

from cluster import names


def read_cluster(state: Path, resource: str, account: str) -> tuple[str, str] | None:
    """Return the cluster and the account of the resources in a state; None if it has none or cannot be read.

    `resource` is the end of the type of these resources, `account` the input of theirs that names the account.
    """
    try:
        resources = json.loads(state.read_text())["checkpoint"]["latest"].get("resources") or []
        for entry in resources:
            if entry.get("type", "").endswith(resource):
                inputs = entry["inputs"]
                return str(inputs["labels"][names.CLUSTER]), str(inputs[account])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None
