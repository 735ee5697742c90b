"""The instance types that a spec names. Rules about them skip types that another rule already reports."""

from __future__ import annotations

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, all_types, instance
from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.plan.machines import CONTROLLER_TYPE, LOGIN_TYPE


def list_type_names(spec: ClusterSpec) -> dict[str, str]:
    """Return the instance types by the property that describes the machine; groups without a type are left out."""
    chosen = {f"groups.{name}": group.instance_type for name, group in spec.groups.items()}
    # An empty text is not replaced by the default: it is a type that the catalog does not have.
    login = {"login": _or_default(spec.login.instance_type, LOGIN_TYPE)} if spec.login.enabled else {}
    machines = {"controller": _or_default(spec.controller.instance_type, CONTROLLER_TYPE), **login, **chosen}
    return {where: name for where, name in machines.items() if name is not None}


def list_catalog_types(spec: ClusterSpec) -> dict[str, InstanceType]:
    """Return the instance types that the catalog has, by the property that describes the machine."""
    return {where: machine for where, name in list_type_names(spec).items() if (machine := _find_type(name))}


def has_all_types(spec: ClusterSpec) -> bool:
    """Return whether the catalog has the type of every machine in the spec."""
    return len(list_catalog_types(spec)) == 1 + spec.login.enabled + len(spec.groups)


def list_typed_groups(spec: ClusterSpec) -> dict[str, tuple[NodeGroup, InstanceType]]:
    """Return the groups whose type the catalog has, with that type, by name."""
    types = list_catalog_types(spec)
    return {name: (group, types[f"groups.{name}"]) for name, group in spec.groups.items() if f"groups.{name}" in types}


def list_regions() -> list[str]:
    """Return every region in which the catalog has any type."""
    return sorted({region for machine in all_types().values() for region in machine.regions})


def count_max_nodes(group: NodeGroup) -> int:
    """Return the number of nodes that the group can have at once."""
    return group.count if group.count is not None else group.max or 0


def _or_default(name: str | None, default: str) -> str:
    return default if name is None else name


def _find_type(name: str) -> InstanceType | None:
    try:
        return instance(name)
    except (UnknownInstanceType, UnverifiedInstanceType):
        return None
