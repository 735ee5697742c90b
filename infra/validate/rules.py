"""The rules for every target; each is a pure function from a spec to issues. A target adds its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from infra.targets.registry import target_of
from infra.targets.target import HostFacts, OnThisMachine
from infra.validate import budget, groups, labels, network, slurm_options, software, storage, target, users

Rule = Callable[[ClusterSpec], Iterator[Issue]]

RULES: tuple[Rule, ...] = (
    groups.cluster_name,
    groups.counts,
    groups.bounds,
    groups.some_compute,
    groups.reserved,
    groups.node_names,
    target.check_machines,
    target.check_fabrics,
    target.check_gpus,
    target.check_autoscaling,
    network.login_size,
    network.cidr,
    target.check_storage_kinds,
    storage.shared,
    storage.system_mounts,
    storage.nested_mounts,
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
    target.check_fields,
)


def validate(spec: ClusterSpec, host: HostFacts | None = None, root: Path | None = None) -> list[Issue]:
    """Return every issue of a spec; `host` adds the rules about this machine, `root` those about repository files."""
    chosen = target_of(spec)
    issues = [issue for rule in RULES for issue in rule(spec)]
    issues += chosen.validate(spec, root)
    if host and isinstance(chosen, OnThisMachine):
        issues += chosen.validate_host(spec, host)
    if root:
        issues += software.lock_exists(spec, root)
    return issues
