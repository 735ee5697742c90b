"""The rules for target aws, in the order in which their issues are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from infra.targets.aws.validate import (
    budget,
    capacity,
    fabric,
    fallback_types,
    local_zones,
    machines,
    network,
    power,
    section,
    software,
    storage,
    tags,
)

Rule = Callable[[ClusterSpec], Iterator[Issue]]

RULES: tuple[Rule, ...] = (
    section.check_presence,
    section.check_region,
    section.check_zones,
    section.check_group_zones,
    local_zones.check_local_zones,
    local_zones.check_first_zone,
    local_zones.check_local_zone_storage,
    section.check_ids,
    section.check_policies,
    section.check_end,
    machines.check_type_present,
    machines.check_type_in_catalog,
    machines.check_type_reviewed,
    machines.check_type_offered,
    machines.check_gpus,
    machines.check_trainium,
    machines.check_idle_gpus,
    machines.check_controller_size,
    machines.check_burstable,
    machines.check_architecture,
    fabric.check_efa_support,
    fabric.check_efa_zones,
    fabric.check_efa_subnets,
    fabric.check_unused_efa,
    fabric.check_single_efa_node,
    fabric.check_efa_placement,
    fabric.check_ip_bandwidth,
    capacity.check_purchase_kinds,
    capacity.check_reservation_present,
    capacity.check_reservation_format,
    capacity.check_shared_reservation,
    capacity.check_reservation_zones,
    capacity.check_fallback,
    capacity.check_placement,
    capacity.check_placement_zones,
    capacity.check_block_size,
    capacity.check_ultraserver_size,
    capacity.check_permanent_spot,
    fallback_types.check_repeated_types,
    fallback_types.check_alike,
    fallback_types.check_sold,
    power.check_resume_time,
    power.check_retry_time,
    network.check_existing_network,
    network.check_network_ids,
    network.check_subnet_zones,
    network.check_vpc_size,
    network.check_subnet_size,
    network.check_images_without_egress,
    network.check_names_without_egress,
    network.check_login_port,
    storage.check_fields,
    storage.check_lustre,
    storage.check_lustre_efa_step,
    storage.check_lustre_efa_clients,
    storage.check_lustre_zone,
    storage.check_s3_location,
    storage.check_backup_days,
    storage.check_backup_id,
    storage.check_existing_filesystem,
    storage.check_existing_filesystem_network,
    storage.check_repeated_filesystem,
    storage.check_scratch_mount,
    software.check_efa_software,
    budget.check_hourly_budget,
    budget.check_monthly_budget,
    budget.check_prices,
    budget.check_notify,
    budget.check_budget_without_egress,
    tags.check_keys,
    tags.check_values,
    tags.check_count,
)


def validate(spec: ClusterSpec, root: Path | None = None) -> Iterator[Issue]:
    """Yield every issue of a spec for target aws; `root` adds the rules about files in the repository."""
    for rule in RULES:
        yield from rule(spec)
    if root:
        yield from software.check_lock(spec, root)
