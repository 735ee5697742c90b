"""Rules on node groups: their number of nodes and their names."""

from __future__ import annotations

from collections.abc import Iterator

from cluster import names
from cluster.spec import ClusterSpec, NodeGroup
from cluster.spec.issue import Issue, error

# In slurm.conf, a partition named `default` (in any case) sets the defaults of all others.
RESERVED = (names.CONTROLLER, names.LOGIN, "default")


def check_counts(spec: ClusterSpec) -> Iterator[Issue]:
    """Require either `count`, or `min` and `max`."""
    for name, group in spec.groups.items():
        where = f"groups.{name}"
        bounds = [bound for bound in ("min", "max") if getattr(group, bound) is not None]
        if group.count is not None and bounds:
            written = " and ".join(_format_bounds(group, bounds))
            message = f"has both count ({group.count}) and {written}; allowed: one or the other"
            yield error("count_and_bounds", where, message, f"remove {' and '.join(bounds)}, or remove count")
        elif group.count is None and not bounds:
            message = "has no number of nodes; allowed: count, or min and max"
            yield error("no_count", where, message, "add `count: 2`")
        elif group.count is None and len(bounds) == 1:
            missing = "max" if bounds == ["min"] else "min"
            message = f"has {_format_bounds(group, bounds)[0]} but no {missing}; allowed: count, or min and max"
            yield error(
                "half_bounds", where, message, f"add `{missing}`, or write `count: {getattr(group, bounds[0])}`"
            )


def check_bounds(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a `min` above `max`."""
    for name, group in spec.groups.items():
        if group.min is not None and group.max is not None and group.min > group.max:
            message = f"{group.min} is more than max ({group.max}); allowed: 0 to {group.max}"
            yield error("min_over_max", f"groups.{name}.min", message, f"write `min: {group.max}`, or raise max")


def check_compute_exists(spec: ClusterSpec) -> Iterator[Issue]:
    """Require at least one compute node."""
    if all(group.count == 0 for group in spec.groups.values()):
        fix = f"write `count: 1` in `groups.{next(iter(spec.groups))}`"
        yield error("no_compute", "groups", "every group has count 0: there would be no node to run a job on", fix)


def check_reserved_names(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse group names that muster or Slurm uses itself."""
    for name in spec.groups:
        if name in RESERVED:
            message = f"'{name}' is not allowed as a group's name; taken: {', '.join(RESERVED)}"
            yield error("reserved_group", f"groups.{name}", message, "rename the group, for example `compute`")


def check_node_names(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a group named like a node of another group: nodes of `gpu` are gpu-1, gpu-2 and so on."""
    for name in spec.groups:
        stem, _, number = name.rpartition("-")
        if stem in spec.groups and number.isdigit():
            message = f"'{name}' is also the name of node {number} of group '{stem}'"
            yield error("name_collision", f"groups.{name}", message, f"rename the group, for example `{stem}{number}`")


def check_cluster_name(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse the name `cache`: its volumes would be named like the caches, `muster-cache-...`, which teardown keeps."""
    if spec.name == "cache":
        message = "'cache' is not allowed as a cluster's name: muster-cache-... are the caches that teardown keeps"
        yield error("reserved_cluster", "name", message, "choose another name, for example `name: demo`")


def _format_bounds(group: NodeGroup, bounds: list[str]) -> list[str]:
    return [f"{bound} ({getattr(group, bound)})" for bound in bounds]
