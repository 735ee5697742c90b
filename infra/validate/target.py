"""Rules on what the chosen target can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cluster.spec import Budget, ClusterSpec, Issue, Machine, Network, NodeGroup, Storage
from cluster.spec.base import SpecModel
from cluster.spec.issue import error
from infra.targets.mixins import Launches
from infra.targets.registry import target_of, targets


def check_machines(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse `size` on targets that rent machines, and `instance_type` on those that do not."""
    offered = target_of(spec).capabilities.machine
    for where, machine in _machines(spec).items():
        for name in ("size", "instance_type"):
            if name not in offered and getattr(machine, name) is not None:
                message = f"target '{spec.target}' has no `{name}`; targets that have it: {_offering('machine', name)}"
                fix = f"remove it, or write `{_listed(offered)}` instead" if offered else "remove it"
                yield error("machine_field", f"{where}.{name}", message, fix)


def check_fabrics(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a fabric that the target does not have."""
    offered = target_of(spec).capabilities.fabrics
    for name, group in spec.groups.items():
        if group.fabric not in offered:
            owners = _offering("fabrics", group.fabric)
            message = f"target '{spec.target}' has no fabric '{group.fabric}'; targets that have it: {owners}"
            yield error("fabric", f"groups.{name}.fabric", message, _choose("fabric", offered))


def check_gpus(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a kind of GPU that the target does not have."""
    offered = target_of(spec).capabilities.gpus
    for name, group in spec.groups.items():
        if group.gpus.count and group.gpus.kind not in offered:
            owners = _offering("gpus", group.gpus.kind)
            message = f"target '{spec.target}' has no {group.gpus.kind} GPUs; targets that have them: {owners}"
            yield error("gpu_kind", f"groups.{name}.gpus.kind", message, f"write `kind: {_listed(offered)}`")


def check_autoscaling(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse `min` and `max` on a target whose nodes Slurm cannot start."""
    if isinstance(target_of(spec), Launches):
        return
    owners = ", ".join(name for name, target in targets().items() if isinstance(target, Launches)) or "none"
    for name, group in spec.groups.items():
        if group.count is None and group.min is not None and group.max is not None:
            message = f"target '{spec.target}' cannot scale between min and max; targets that can: {owners}"
            yield error("autoscaling", f"groups.{name}", message, f"write `count: {group.max}` instead of min and max")


def check_storage_kinds(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a kind of filesystem that the target does not have."""
    offered = target_of(spec).capabilities.storage
    for name, storage in spec.storage.items():
        if storage.kind not in offered:
            owners = _offering("storage", storage.kind)
            written = "kind" in storage.model_fields_set
            kind = f"'{storage.kind}'" if written else f"'{storage.kind}', the default"
            message = f"target '{spec.target}' has no storage {kind}; targets that have it: {owners}"
            fix = _choose("kind", offered) if written else _add_kind(name, offered)
            yield error("storage_kind", f"storage.{name}.kind", message, fix)


def check_fields(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse fields and sections that only other targets can use; here they would do nothing."""
    for name, target in targets().items():
        if name != spec.target and target.section and getattr(spec, name, None) is not None:
            yield _refuse(spec, name, [name])
    usable = target_of(spec).capabilities.fields
    every = frozenset(field for target in targets().values() for field in target.capabilities.fields)
    for path, where, part, kind in _parts(spec):
        for key, info in kind.model_fields.items():
            field = f"{path}.{key}"
            if field in every - usable and getattr(part, key) != info.default:
                owners = [name for name, target in targets().items() if field in target.capabilities.fields]
                yield _refuse(spec, f"{where}.{key}", owners)


def _parts(spec: ClusterSpec) -> Iterator[tuple[str, str, Any, type[SpecModel]]]:
    """Yield the parts whose fields may belong to some targets only: path, path with names, value, model."""
    for name, group in spec.groups.items():
        yield "groups", f"groups.{name}", group, NodeGroup
    yield "network", "network", spec.network, Network
    for name, storage in spec.storage.items():
        yield "storage", f"storage.{name}", storage, Storage
    yield "budget", "budget", spec.budget, Budget


def _refuse(spec: ClusterSpec, where: str, owners: list[str]) -> Issue:
    message = f"target '{spec.target}' cannot use it; targets that can: {', '.join(owners)}"
    return error("target_field", where, message, f"remove it, or write `target: {owners[0]}`")


def _offering(capability: str, value: str) -> str:
    """Return the targets that have `value` among the values of one capability, as a message lists them."""
    return ", ".join(n for n, t in targets().items() if value in getattr(t.capabilities, capability)) or "none"


def _machines(spec: ClusterSpec) -> dict[str, Machine]:
    return {"controller": spec.controller, "login": spec.login} | {f"groups.{n}": g for n, g in spec.groups.items()}


def _choose(field: str, offered: frozenset[str]) -> str:
    """Return the fix for a field whose value must be among those that the target has."""
    return f"choose from: {_listed(offered)}" if len(offered) > 1 else f"write `{field}: {_listed(offered)}`"


def _add_kind(storage: str, offered: frozenset[str]) -> str:
    """Return the fix for a stack file that names no kind of filesystem, and perhaps no filesystem."""
    others = f"; allowed kinds: {_listed(offered)}" if len(offered) > 1 else ""
    return f"write for example `storage: {{{storage}: {{kind: {min(offered)}}}}}`{others}"


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
