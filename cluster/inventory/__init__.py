"""The inventory: the machines that exist, in the form that every target uses."""

from cluster.inventory.cloud import (
    Cloud,
    Filesystem,
    Interpreter,
    InterpreterArchive,
    JobCredentials,
    PackageRepository,
)
from cluster.inventory.model import Adopted, Inventory, InventoryModel, Node, NodeGpus, NodeSet, Role, ServedFilesystem

__all__ = [
    "Adopted",
    "Cloud",
    "Filesystem",
    "Interpreter",
    "InterpreterArchive",
    "Inventory",
    "InventoryModel",
    "JobCredentials",
    "Node",
    "NodeGpus",
    "NodeSet",
    "PackageRepository",
    "Role",
    "ServedFilesystem",
]
