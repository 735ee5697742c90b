"""The table of validators; each is a pure function from a spec to issues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from infra.spec import ClusterSpec
from infra.validate import budget, groups, host, labels, network, slurm_options, software, storage, target, users
from infra.validate.host import EngineFacts
from infra.validate.issue import Issue

SPEC_RULES: tuple[Callable[[ClusterSpec], Iterator[Issue]], ...] = (
    groups.cluster_name,
    target.available,
    groups.counts,
    groups.bounds,
    groups.some_compute,
    groups.reserved,
    groups.node_names,
    target.machines,
    target.fabrics,
    target.gpus,
    target.autoscaling,
    network.login_port,
    network.login_size,
    network.cidr,
    network.room,
    target.storage_kinds,
    storage.shared,
    storage.system_mounts,
    storage.nested_mounts,
    storage.sizes,
    users.names,
    users.uids,
    users.ssh_keys,
    slurm_options.default_group,
    slurm_options.times,
    slurm_options.time_order,
    slurm_options.extra_keys,
    slurm_options.extra_values,
    software.training_lock,
    labels.tags,
    budget.order,
)
HOST_RULES: tuple[Callable[[ClusterSpec, EngineFacts], Iterator[Issue]], ...] = (
    host.cpus,
    host.memory,
    host.total_memory,
)


def validate(spec: ClusterSpec, engine: EngineFacts | None = None, root: Path | None = None) -> list[Issue]:
    """Every issue of a spec; `engine` adds the rules about this machine, `root` those about files of the repository."""
    found = [issue for rule in SPEC_RULES for issue in rule(spec)]
    if engine and spec.target == "local":
        found += [issue for rule in HOST_RULES for issue in rule(spec, engine)]
    if root:
        found += software.lock_exists(spec, root)
    return found
