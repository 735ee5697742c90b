"""Rules on further partitions: their names, and the groups whose nodes they have."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from cluster.catalog.similar import MAX_COMPARED_CHARACTERS
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.validate.groups import RESERVED


def check_partition_names(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse names that a group's own partition has, or that Slurm uses itself."""
    taken = (*spec.groups, *RESERVED)
    for name in spec.slurm.partitions:
        if name in taken:
            message = f"'{name}' is not allowed as a partition's name; taken: {', '.join(taken)}"
            fix = "rename it; to change all partitions, set the fields of `slurm`"
            yield error("reserved_partition", f"slurm.partitions.{name}", message, fix)


def check_partition_groups(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse partitions over groups that do not exist or are listed twice."""
    for name, partition in spec.slurm.partitions.items():
        for index, group in enumerate(partition.groups):
            where = f"slurm.partitions.{name}.groups[{index}]"
            if group not in spec.groups:
                near = get_close_matches(group[:MAX_COMPARED_CHARACTERS], spec.groups, n=1, cutoff=0)[0]
                message = f"'{group}' is not a group; allowed: {', '.join(spec.groups)}"
                yield error("partition_group", where, message, f"write `{near}`")
            elif group in partition.groups[:index]:
                message = f"'{group}' is listed already; allowed: each group once"
                yield error("partition_group_twice", where, message, "remove it")
