"""Which parts a cluster on AWS has by its settings: the conditions of the rows in resource_table.py."""

from __future__ import annotations

from collections.abc import Callable

from cluster.spec import ClusterSpec
from infra.targets.aws.plan.capacity import options
from infra.targets.aws.plan.network import endpoints, zones
from infra.targets.aws.spec import RolePolicies, aws_section

Condition = Callable[[ClusterSpec], bool]


def has_own_network(spec: ClusterSpec) -> bool:
    """Return whether muster creates the network."""
    return not spec.network.vpc_id


def has_way_out(spec: ClusterSpec) -> bool:
    """Return whether a NAT gateway leads to the internet."""
    return has_own_network(spec) and spec.network.egress


def has_flow_logs(spec: ClusterSpec) -> bool:
    """Return whether connections in muster's own network are logged."""
    return has_own_network(spec) and spec.network.flow_logs


def has_private_endpoints(spec: ClusterSpec) -> bool:
    """Return whether services of AWS are reached inside the network."""
    return bool(endpoints(spec))


def has_own_key(spec: ClusterSpec) -> bool:
    """Return whether muster creates the key that encrypts everything."""
    section = aws_section(spec)
    return not (section and section.kms_key)


def has_extra_policies(spec: ClusterSpec) -> bool:
    """Return whether the spec adds policies to roles."""
    section = aws_section(spec)
    return section is not None and section.policies != RolePolicies()


def has_monthly_budget(spec: ClusterSpec) -> bool:
    """Return whether the cost of a calendar month is limited."""
    return spec.budget.usd_per_month is not None


def is_placed(spec: ClusterSpec) -> bool:
    """Return whether nodes of a group are placed close together."""
    return any(option.placement for group in spec.groups.values() for option in options(group, zones(spec)))


def has_storage(kind: str) -> Condition:
    """Return the condition that a shared filesystem is of this kind."""
    return lambda spec: any(storage.kind == kind for storage in spec.storage.values())


def is_linked_to_s3(spec: ClusterSpec) -> bool:
    """Return whether a filesystem shows the objects of a bucket."""
    return any(storage.s3 for storage in spec.storage.values())


def has_efs_backups(spec: ClusterSpec) -> bool:
    """Return whether there are daily backups of an EFS filesystem."""
    return any(storage.kind == "efs" and storage.backup_days for storage in spec.storage.values())


def has_state_snapshots(spec: ClusterSpec) -> bool:
    """Return whether there are daily snapshots of Slurm's state."""
    section = aws_section(spec)
    return section is not None and section.state_backup_days is not None
