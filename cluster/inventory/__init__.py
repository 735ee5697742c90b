"""Inventory: what exists."""

from cluster.inventory.cloud import Cloud, Filesystem
from cluster.inventory.fleet import Fleet, FleetGroup, LaunchOption
from cluster.inventory.model import Inventory, Node, NodeGpus, NodeSet, Role

__all__ = [
    "Cloud",
    "Filesystem",
    "Fleet",
    "FleetGroup",
    "Inventory",
    "LaunchOption",
    "Node",
    "NodeGpus",
    "NodeSet",
    "Role",
]
