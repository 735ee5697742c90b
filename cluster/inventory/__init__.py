"""Inventory: what exists."""

from cluster.inventory.cloud import Cloud, Filesystem
from cluster.inventory.model import Inventory, Node, NodeGpus, NodeSet, Role

__all__ = [
    "Cloud",
    "Filesystem",
    "Inventory",
    "Node",
    "NodeGpus",
    "NodeSet",
    "Role",
]
