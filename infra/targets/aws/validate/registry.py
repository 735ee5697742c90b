"""The rules for target aws, in the order in which their findings are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cluster.spec import ClusterSpec, Issue
from infra.targets.aws.validate import (
    budget,
    capacity,
    fabric,
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
    section.present,
    section.region,
    section.zones,
    section.group_zones,
    section.ids,
    machines.given,
    machines.in_catalog,
    machines.offered,
    machines.gpus,
    machines.trainium,
    machines.idle_gpus,
    machines.controller_size,
    machines.burstable,
    machines.architecture,
    fabric.supported,
    fabric.one_zone,
    fabric.one_subnet,
    fabric.unused,
    fabric.alone,
    fabric.scattered,
    fabric.ip_bandwidth,
    capacity.sold,
    capacity.reservation_named,
    capacity.reservation_format,
    capacity.reservation_shared,
    capacity.reservation_zones,
    capacity.fallback,
    capacity.placement,
    capacity.placement_zones,
    capacity.block_size,
    capacity.spot_static,
    power.resume,
    power.retries,
    network.existing,
    network.formats,
    network.zones_of_subnets,
    network.range_size,
    network.room,
    network.images_offline,
    network.names_offline,
    network.login_port,
    storage.fields,
    storage.lustre,
    storage.lustre_efa_step,
    storage.lustre_efa_clients,
    storage.lustre_zone,
    storage.s3,
    storage.existing,
    storage.existing_twice,
    storage.scratch,
    software.fetched,
    budget.hourly,
    budget.monthly,
    budget.unknown_price,
    budget.notify,
    budget.unread,
    tags.keys,
    tags.values,
    tags.count,
)


def validate(spec: ClusterSpec, root: Path | None = None) -> Iterator[Issue]:
    """Yield every issue of a spec for target aws; `root` adds the rules about files of the repository."""
    for rule in RULES:
        yield from rule(spec)
    if root:
        yield from software.lock(spec, root)
