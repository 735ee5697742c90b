"""Check the number of nodes that a job requests before it is submitted."""

from __future__ import annotations

from collections import Counter

from cluster.inventory import Inventory
from cluster.plural import format_count
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands.job_directives import list_directives, read_directive

# Separates the parts of a job, of which each has its own nodes and partition.
_HETEROGENEOUS = "hetjob"


def check_nodes(job: str, file: str, inventory: Inventory, stack: str) -> None:
    """Raise Stop if a job requests more nodes than its partition has: Slurm would keep it waiting forever."""
    if _HETEROGENEOUS in list_directives(job):
        return
    requested = read_directive(job, "nodes", "N").partition("-")[0]
    sizes = count_nodes(inventory)
    partition = read_directive(job, "partition", "p")
    # The partition of jobs that name none may contain several groups, as may those that are no group.
    available = sizes.get(partition, sum(sizes.values()))
    if not requested.isdecimal() or not available or int(requested) <= available:
        return
    where = f"group {partition}" if partition in sizes else "the cluster"
    raise Stop(
        f"nodes: {file} requests {format_count(int(requested), 'node')}, but {where} has {available}",
        f"`{format_command('submit', stack, f'JOB={file}', f'NODES={available}')}`, or a larger group",
        BAD_INPUT,
    )


def count_nodes(inventory: Inventory) -> dict[str, int]:
    """Return the number of compute nodes of each group, with those that are launched on demand."""
    single = Counter(node.group or "" for node in inventory.compute)
    return {**single, **{nodes.group: nodes.count for nodes in inventory.sets}}
