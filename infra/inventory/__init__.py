"""Inventory: what exists."""

from infra.inventory.model import Inventory, Node, NodeGpus, Role

__all__ = ["Inventory", "Node", "NodeGpus", "Role"]
