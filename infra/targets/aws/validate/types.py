"""The instance types that a spec names and the catalog knows; rules about them skip what another rule complains of."""

from __future__ import annotations

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, all_types, instance
from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.plan.machines import CONTROLLER_TYPE, LOGIN_TYPE


def named(spec: ClusterSpec) -> dict[str, str]:
    """Type by the property that asks for a machine; groups that name none are left out."""
    chosen = {f"groups.{name}": group.instance_type for name, group in spec.groups.items()}
    # An empty text is not replaced by the default: it is a type that the catalog does not have.
    login = {"login": _or_default(spec.login.instance_type, LOGIN_TYPE)} if spec.login.enabled else {}
    machines = {"controller": _or_default(spec.controller.instance_type, CONTROLLER_TYPE), **login, **chosen}
    return {where: name for where, name in machines.items() if name is not None}


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


def _or_default(name: str | None, default: str) -> str:
    return default if name is None else name


def _found(name: str) -> InstanceType | None:
    try:
        return instance(name)
    except (UnknownInstanceType, UnverifiedInstanceType):
        return None
