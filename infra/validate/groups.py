"""Rules about node groups: how many nodes, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator

from cluster import names
from cluster.spec import ClusterSpec, NodeGroup
from cluster.spec.issue import Issue, error

# Slurm takes a partition of this name, in any case, for the defaults of all others.
RESERVED = (names.CONTROLLER, names.LOGIN, "default")


def counts(spec: ClusterSpec) -> Iterator[Issue]:
    """Exactly one of `count` and `min` with `max`."""
    for name, group in spec.groups.items():
        where = f"groups.{name}"
        bounds = [bound for bound in ("min", "max") if getattr(group, bound) is not None]
        if group.count is not None and bounds:
            message = (
                f"has count ({group.count}) as well as {' and '.join(_said(group, bounds))}; allowed: one or the other"
            )
            yield error("count_and_bounds", where, message, f"remove {' and '.join(bounds)}, or remove count")
        elif group.count is None and not bounds:
            message = "does not say how many nodes it has; allowed: count, or min and max"
            yield error("no_count", where, message, "add `count: 2`")
        elif group.count is None and len(bounds) == 1:
            missing = "max" if bounds == ["min"] else "min"
            message = f"has {_said(group, bounds)[0]} but no {missing}; allowed: count, or min and max"
            yield error(
                "half_bounds", where, message, f"add `{missing}`, or write `count: {getattr(group, bounds[0])}`"
            )


def bounds(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        if group.min is not None and group.max is not None and group.min > group.max:
            message = f"{group.min} is more than max ({group.max}); allowed: 0 to {group.max}"
            yield error("min_over_max", f"groups.{name}.min", message, f"write `min: {group.max}`, or raise max")


def some_compute(spec: ClusterSpec) -> Iterator[Issue]:
    if all(group.count == 0 for group in spec.groups.values()):
        fix = f"write `count: 1` in `groups.{next(iter(spec.groups))}`"
        yield error("no_compute", "groups", "every group has count 0: there would be no node to run a job on", fix)


def reserved(spec: ClusterSpec) -> Iterator[Issue]:
    for name in spec.groups:
        if name in RESERVED:
            message = f"'{name}' is not allowed as a group's name; taken: {', '.join(RESERVED)}"
            yield error("reserved_group", f"groups.{name}", message, "rename the group, for example `compute`")


def node_names(spec: ClusterSpec) -> Iterator[Issue]:
    """Group `gpu` names its nodes gpu-1, gpu-2, ...: no group may be called like one of them, now or after growth."""
    for name in spec.groups:
        stem, _, number = name.rpartition("-")
        if stem in spec.groups and number.isdigit():
            message = f"'{name}' is also what group '{stem}' calls its node {number}"
            yield error("name_collision", f"groups.{name}", message, f"rename the group, for example `{stem}{number}`")


def cluster_name(spec: ClusterSpec) -> Iterator[Issue]:
    """Volumes are `muster-<cluster>-<storage>`; `muster-cache-...` is what teardown keeps."""
    if spec.name == "cache":
        message = "'cache' is not allowed as a cluster's name: muster-cache-... are the caches that teardown keeps"
        yield error("reserved_cluster", "name", message, "choose another name, for example `name: demo`")


def _said(group: NodeGroup, bounds: list[str]) -> list[str]:
    return [f"{bound} ({getattr(group, bound)})" for bound in bounds]
