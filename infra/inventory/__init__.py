"""Inventory: what exists."""

from infra.inventory.fleet import Fleet, FleetGroup, LaunchOption
from infra.inventory.model import Inventory, Node, NodeGpus, NodeSet, Role

__all__ = ["Fleet", "FleetGroup", "Inventory", "LaunchOption", "Node", "NodeGpus", "NodeSet", "Role"]
