"""The instance types that a spec names and the catalog knows; rules about them skip what another rule complains of."""

from __future__ import annotations

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, all_types, instance
from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.plan.machines import CONTROLLER_TYPE, LOGIN_TYPE


def named(spec: ClusterSpec) -> dict[str, str]:
    """Type by the property that asks for a machine; groups that name none are left out."""
    groups = {f"groups.{name}": group.instance_type for name, group in spec.groups.items() if group.instance_type}
    login = {"login": spec.login.instance_type or LOGIN_TYPE} if spec.login.enabled else {}
    return {"controller": spec.controller.instance_type or CONTROLLER_TYPE, **login, **groups}


def known(spec: ClusterSpec) -> dict[str, InstanceType]:
    return {where: found for where, name in named(spec).items() if (found := _found(name))}


def complete(spec: ClusterSpec) -> bool:
    """Whether every machine of the spec has a type that the catalog knows."""
    return len(known(spec)) == 1 + spec.login.enabled + len(spec.groups)


def groups(spec: ClusterSpec) -> dict[str, tuple[NodeGroup, InstanceType]]:
    """Groups by name, with their type, where that is known."""
    types = known(spec)
    return {name: (group, types[f"groups.{name}"]) for name, group in spec.groups.items() if f"groups.{name}" in types}


def regions() -> list[str]:
    """Every region in which the catalog knows of any type."""
    return sorted({region for found in all_types().values() for region in found.regions})


def most(group: NodeGroup) -> int:
    """Nodes the group can have at once."""
    return group.count if group.count is not None else group.max or 0


def _found(name: str) -> InstanceType | None:
    try:
        return instance(name)
    except (UnknownInstanceType, UnverifiedInstanceType):
        return None
