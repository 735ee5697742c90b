"""Rules about the further instance types of a group: its nodes must be alike to Slurm, to jobs and to the network."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.catalog.instances import Gpus, InstanceType
from cluster.spec import ClusterSpec, NodeGroup
from cluster.spec.issue import Issue, error
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.plan.interfaces import NoEfa, interfaces
from infra.targets.aws.validate.types import list_catalog_types, list_typed_groups


def check_repeated_types(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a type that a group names twice, and types that are never tried."""
    for name, group in spec.groups.items():
        where, names = f"groups.{name}.capacity.fallback_types", group.capacity.fallback_types
        for index, fallback in enumerate(names):
            if fallback in (group.instance_type, *names[:index]):
                message = f"'{fallback}' is listed already; allowed: each type once"
                yield error("fallback_type_twice", f"{where}[{index}]", message, "remove it")
        if names and not set(purchases(group)) - set(RESERVED):
            message = f"{', '.join(names)} would never be tried: reserved capacity is only for {group.instance_type}"
            fix = "write `fallback: [on-demand]` under `capacity:`, or remove fallback_types"
            yield error("fallback_types_unused", where, message, fix)


def check_alike(spec: ClusterSpec) -> Iterator[Issue]:
    """Report types whose accelerators or network interfaces differ from those of the group's first type."""
    for name, (group, first) in list_typed_groups(spec).items():
        for where, machine in _list_fallbacks(spec, name).items():
            if _accelerators(machine) != _accelerators(first):
                message = (
                    f"{machine.name} has {_describe_accelerators(machine)}, {first.name} has "
                    f"{_describe_accelerators(first)}; allowed: types with the same accelerators"
                )
                yield error("fallback_type_gpus", where, message, "make a group of its own for it, or remove it")
            elif _interfaces(machine, group) != _interfaces(first, group):
                message = (
                    f"{machine.name} has other network interfaces than {first.name} "
                    f"({machine.efa_interfaces} EFA instead of {first.efa_interfaces}); allowed: types with the same"
                )
                fix = "make a group of its own for it, remove it, or write `fabric: tcp`"
                yield error("fallback_type_network", where, message, fix)


def check_sold(spec: ClusterSpec) -> Iterator[Issue]:
    """Report types that are sold in none of the ways in which the group buys, or not in placement groups."""
    for name, (group, _) in list_typed_groups(spec).items():
        for where, machine in _list_fallbacks(spec, name).items():
            if missing := [kind for kind in purchases(group) if kind not in RESERVED and kind not in machine.purchases]:
                allowed = ", ".join(sorted(machine.purchases))
                message = f"{machine.name} is not sold as {', '.join(missing)}; allowed: {allowed}"
                yield error("fallback_type_not_sold", where, message, "name another type, or remove it")
            if group.capacity.placement == "cluster" and not machine.placement:
                message = f"{machine.name} cannot be in a cluster placement group"
                yield error("fallback_type_placement", where, message, "write `placement: auto`, or name another type")


def _list_fallbacks(spec: ClusterSpec, group: str) -> dict[str, InstanceType]:
    """Return the further types of a group that the catalog has, by the property that names them."""
    prefix = f"groups.{group}.capacity.fallback_types["
    return {where: machine for where, machine in list_catalog_types(spec).items() if where.startswith(prefix)}


def _accelerators(machine: InstanceType) -> tuple[Gpus, int]:
    return machine.gpus, machine.neuron


def _describe_accelerators(machine: InstanceType) -> str:
    if machine.neuron:
        return f"{machine.neuron} Trainium chips"
    gpus = machine.gpus
    return f"{gpus.count} {gpus.name} of {gpus.memory_mb // 1024} GiB" if gpus.count else "no GPU"


def _interfaces(machine: InstanceType, group: NodeGroup) -> object:
    try:
        return interfaces(machine, group.fabric, ip_bandwidth=group.ip_bandwidth)
    except NoEfa:
        return None
