"""The registry of the rules for every target; each is a pure function from a spec to issues. Targets add their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from infra.targets.mixins import HostFacts, OnThisMachine
from infra.targets.registry import target_of
from infra.validate import (
    alerts,
    budget,
    groups,
    labels,
    network,
    partitions,
    slurm_options,
    software,
    storage,
    target,
    users,
)

Rule = Callable[[ClusterSpec], Iterator[Issue]]

RULES: tuple[Rule, ...] = (
    groups.check_cluster_name,
    groups.check_counts,
    groups.check_bounds,
    groups.check_compute_exists,
    groups.check_reserved_names,
    groups.check_node_names,
    target.check_machines,
    target.check_fabrics,
    target.check_gpus,
    target.check_autoscaling,
    network.check_login_size,
    network.check_cidr,
    target.check_storage_kinds,
    storage.check_shared,
    storage.check_system_mounts,
    storage.check_nested_mounts,
    users.check_names,
    users.check_uids,
    users.check_ssh_keys,
    slurm_options.check_default_group,
    partitions.check_partition_names,
    partitions.check_partition_groups,
    slurm_options.check_time_limits,
    slurm_options.check_time_order,
    slurm_options.check_extra_keys,
    slurm_options.check_extra_values,
    software.check_lock_path,
    labels.check_tags,
    budget.check_order,
    alerts.check_webhook_encrypted,
    target.check_fields,
)


def validate(spec: ClusterSpec, host: HostFacts | None = None, root: Path | None = None) -> list[Issue]:
    """Return every issue of a spec; `host` adds the rules on this machine, `root` those on files of the repository."""
    chosen = target_of(spec)
    issues = [issue for rule in RULES for issue in rule(spec)]
    issues += chosen.validate(spec, root)
    if host and isinstance(chosen, OnThisMachine):
        issues += chosen.validate_host(spec, host)
    if root:
        issues += software.check_lock_exists(spec, root)
    return issues
