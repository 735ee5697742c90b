"""Inventory: what exists."""

from infra.inventory.cloud import Cloud, Filesystem
from infra.inventory.fleet import Fleet, FleetGroup, LaunchOption
from infra.inventory.model import Inventory, Node, NodeGpus, NodeSet, Role

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
