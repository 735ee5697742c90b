"""The build plan of a cluster on Azure, the ids of its resources, and its subnets. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network

from cluster import names
from cluster.inventory import ServedFilesystem
from cluster.spec import ClusterSpec
from infra.plan import BuildPlan
from infra.targets.azure.sizes import read_sizes
from infra.targets.azure.spec import SECTION, Azure, AzureMachine, require_section
from infra.targets.rented.plan import Hardware, plan_machines
from infra.targets.rented.section import machine_of

# Half of the range is for nodes, a quarter for filesystems, which need many addresses of their own.
NETWORK_MAX_PREFIX = 24
ROOT_GB, CONTROLLER_GB, NFS_GB = 200, 128, 512
NFS_FOLDER = "/srv/muster"


def plan_azure(spec: ClusterSpec) -> BuildPlan:
    """Return the plan of a valid spec."""
    section = require_section(spec)

    def choose(role: str, group: str | None) -> Hardware:
        machine = machine_of(section, role, group)
        size = read_sizes()[machine.size]
        return Hardware(size.cpus, size.memory_gb, machine.size)

    return plan_machines(spec, choose)


def list_machines(section: Azure) -> Mapping[str, AzureMachine]:
    """Return all machines of a section by the property that describes them."""
    groups = {f"{SECTION}.groups.{name}": machine for name, machine in section.groups.items()}
    return {f"{SECTION}.controller": section.controller, f"{SECTION}.login": section.login, **groups}


def group_id(spec: ClusterSpec) -> str:
    """Return the id of a cluster's resource group, which has everything that belongs to it."""
    return f"/subscriptions/{require_section(spec).subscription}/resourceGroups/{names.network(spec.name)}"


def resource_id(spec: ClusterSpec, type_: str, name: str) -> str:
    """Return the id of a resource in the cluster's group by its type, for example Microsoft.Network/natGateways."""
    return f"{group_id(spec)}/providers/{type_}/{name}"


def divide_range(cidr: str) -> tuple[str, str]:
    """Return the address ranges of the nodes (the first half) and of filesystems (the third quarter)."""
    nodes, others = IPv4Network(cidr).subnets()
    return str(nodes), str(next(others.subnets()))


def list_served(spec: ClusterSpec) -> tuple[ServedFilesystem, ...]:
    """Return the filesystems that the controller serves by NFS."""
    return tuple(
        ServedFilesystem(mount=storage.mount, node=names.CONTROLLER, folder=f"{NFS_FOLDER}/{name}")
        for name, storage in spec.storage.items()
        if storage.kind == "nfs"
    )


def disk_size_gb(spec: ClusterSpec, role: str, group: str | None) -> int:
    """Return the size of a node's boot disk; the controller's also has the files that it serves by NFS."""
    if group is not None:
        return spec.groups[group].root_gb or ROOT_GB
    served = [storage.size_gb or NFS_GB for storage in spec.storage.values() if storage.kind == "nfs"]
    return CONTROLLER_GB + (sum(served) if role == "controller" else 0)
