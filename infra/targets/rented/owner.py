"""Names and labels of a cluster's resources, and whose they are. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cluster import names

_OWNER = (names.CLUSTER, names.STACK, names.HOME)


def owner_labels(cluster: str, stack: str, home: Path, tags: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of everything that a cluster has; the API itself knows when it was created."""
    return {**tags, names.CLUSTER: cluster, names.STACK: stack, names.HOME: names.home_labels(home)[names.HOME]}


def is_same_owner(labels: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Return whether a resource belongs to the cluster, stack and MUSTER_HOME of the expected labels."""
    return all(labels.get(key) == expected.get(key) for key in _OWNER)


def describe_owner(labels: Mapping[str, str]) -> str:
    """Return whose a resource is, for messages."""
    if names.CLUSTER not in labels:
        return "which muster did not create"
    return f"which belongs to cluster {labels[names.CLUSTER]} (stack {labels.get(names.STACK, '?')}, another operator)"
