"""Rules about the machine that carries a local cluster: its CPUs and memory are what the nodes share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.plan import PlannedNode, plan


@dataclass(frozen=True)
class EngineFacts:
    """What the Docker engine reports about the machine it runs on."""

    cpus: int
    memory_mb: int


def cpus(spec: ClusterSpec, engine: EngineFacts) -> Iterator[Issue]:
    for owner, node in _kinds(spec).items():
        if node.cpus > engine.cpus:
            message = f"{node.cpus} is more CPUs than this machine has; allowed: 1 to {engine.cpus}"
            yield error("host_cpus", f"{owner}.size.cpus", message, f"write `size: {{cpus: {engine.cpus}}}`")


def memory(spec: ClusterSpec, engine: EngineFacts) -> Iterator[Issue]:
    for owner, node in _kinds(spec).items():
        if node.memory_mb > engine.memory_mb:
            message = f"{node.memory_mb} is more MiB than this machine has; allowed: 512 to {engine.memory_mb}"
            yield error("host_memory", f"{owner}.size.memory_mb", message, "write a smaller `memory_mb`")


def total_memory(spec: ClusterSpec, engine: EngineFacts) -> Iterator[Issue]:
    """Limits are no reservations, so more than there is can be promised, as long as jobs do not use it all."""
    nodes = plan(spec).nodes
    total = sum(node.memory_mb for node in nodes)
    if total > engine.memory_mb:
        message = f"the limits of {len(nodes)} nodes add up to {total} MiB; this machine has {engine.memory_mb} MiB"
        fix = "lower `memory_mb` or the counts, or accept that jobs that use it all end in the kernel's hands"
        yield warning("host_memory_total", "groups", message, fix)


def _kinds(spec: ClusterSpec) -> dict[str, PlannedNode]:
    """One node of each kind, under the property that sizes it."""
    return {f"groups.{node.group}" if node.group else node.role: node for node in reversed(plan(spec).nodes)}
