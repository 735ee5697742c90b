"""Rules about what the chosen target can do."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.spec import ClusterSpec, Machine
from cluster.spec.issue import Issue, error
from infra.validate.capabilities import TARGETS, having, offering


def available(spec: ClusterSpec) -> Iterator[Issue]:
    if not TARGETS[spec.target].available:
        message = f"target '{spec.target}' is not available in this version; available: {having('available')}"
        first = having("available").partition(",")[0]
        yield error("target_unavailable", "target", message, f"write for example `target: {first}`")


def machines(spec: ClusterSpec) -> Iterator[Issue]:
    """`size` belongs to targets that cut nodes out of a machine, `instance_type` to those that rent them."""
    offered = TARGETS[spec.target].machine
    for where, machine in _machines(spec).items():
        for name in ("size", "instance_type"):
            if name not in offered and getattr(machine, name) is not None:
                message = f"target '{spec.target}' has no `{name}`; targets that have it: {offering('machine', name)}"
                fix = f"remove it, or say `{_listed(offered)}` instead" if offered else "remove it"
                yield error("machine_field", f"{where}.{name}", message, fix)


def fabrics(spec: ClusterSpec) -> Iterator[Issue]:
    offered = TARGETS[spec.target].fabrics
    for name, group in spec.groups.items():
        if group.fabric not in offered:
            owners = offering("fabrics", group.fabric)
            message = f"target '{spec.target}' has no fabric '{group.fabric}'; targets that have it: {owners}"
            yield error("fabric", f"groups.{name}.fabric", message, f"choose from: {_listed(offered)}")


def gpus(spec: ClusterSpec) -> Iterator[Issue]:
    offered = TARGETS[spec.target].gpus
    for name, group in spec.groups.items():
        if group.gpus.count and group.gpus.kind not in offered:
            owners = offering("gpus", group.gpus.kind)
            message = f"target '{spec.target}' has no {group.gpus.kind} GPUs; targets that have them: {owners}"
            yield error("gpu_kind", f"groups.{name}.gpus.kind", message, f"write `kind: {_listed(offered)}`")


def autoscaling(spec: ClusterSpec) -> Iterator[Issue]:
    if TARGETS[spec.target].power_saving:
        return
    for name, group in spec.groups.items():
        if group.count is None and group.min is not None and group.max is not None:
            message = (
                f"target '{spec.target}' cannot scale between min and max; targets that can: {having('power_saving')}"
            )
            yield error("autoscaling", f"groups.{name}", message, f"write `count: {group.max}` instead of min and max")


def storage_kinds(spec: ClusterSpec) -> Iterator[Issue]:
    offered = TARGETS[spec.target].storage
    for name, storage in spec.storage.items():
        if storage.kind not in offered:
            owners = offering("storage", storage.kind)
            message = f"target '{spec.target}' has no storage '{storage.kind}'; targets that have it: {owners}"
            yield error("storage_kind", f"storage.{name}.kind", message, f"choose from: {_listed(offered)}")


def _machines(spec: ClusterSpec) -> dict[str, Machine]:
    return {"controller": spec.controller, "login": spec.login} | {f"groups.{n}": g for n, g in spec.groups.items()}


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))
