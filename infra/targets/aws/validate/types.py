"""The instance types that a spec names. Rules about them skip types that another rule already reports."""

from __future__ import annotations

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, all_types, instance
from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.plan.machines import CONTROLLER_TYPE, LOGIN_TYPE

CONTROLLER, LOGIN = "controller.instance_type", "login.instance_type"
"""Properties that name the types of controller and login."""


def list_type_names(spec: ClusterSpec) -> dict[str, str]:
    """Return the instance types by the property that names them; groups without a type are left out."""
    # An empty text is not replaced by the default: it is a type that the catalog does not have.
    types = {CONTROLLER: _or_default(spec.controller.instance_type, CONTROLLER_TYPE)}
    if spec.login.enabled:
        types[LOGIN] = _or_default(spec.login.instance_type, LOGIN_TYPE)
    for name, group in spec.groups.items():
        if group.instance_type is not None:
            types[type_property(name)] = group.instance_type
        fallbacks = enumerate(group.capacity.fallback_types)
        types |= {f"groups.{name}.capacity.fallback_types[{index}]": fallback for index, fallback in fallbacks}
    return types


def list_catalog_types(spec: ClusterSpec) -> dict[str, InstanceType]:
    """Return the instance types that the catalog has, by the property that names them."""
    return {where: machine for where, name in list_type_names(spec).items() if (machine := _find_type(name))}


def has_all_types(spec: ClusterSpec) -> bool:
    """Return whether the catalog has the type of every machine in the spec."""
    every_group = all(group.instance_type is not None for group in spec.groups.values())
    return every_group and len(list_catalog_types(spec)) == len(list_type_names(spec))


def list_typed_groups(spec: ClusterSpec) -> dict[str, tuple[NodeGroup, InstanceType]]:
    """Return the groups whose first type the catalog has, with that type, by name."""
    types = list_catalog_types(spec)
    properties = {name: type_property(name) for name in spec.groups}
    return {name: (spec.groups[name], types[where]) for name, where in properties.items() if where in types}


def type_property(group: str) -> str:
    """Return the property that names the first type of a group."""
    return f"groups.{group}.instance_type"


def machine_of(where: str) -> str:
    """Return what a property that names a type describes: controller, login or, for example, groups.gpu."""
    return ".".join(where.split(".")[: 2 if where.startswith("groups.") else 1])


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
