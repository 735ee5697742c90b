"""Rules about EFA: where it exists, where it reaches, and what more interfaces bring."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.catalog.instances import InstanceType, all_types
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.plan.network import zones
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import groups, most


def supported(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (group, found) in groups(spec).items():
        if group.fabric == "efa" and not found.efa_interfaces:
            near = _near(found)
            message = f"{found.name} has no EFA; types of its family that have it: {', '.join(near) or 'none'}"
            fix = f"write `instance_type: {near[0]}`, or `fabric: tcp`" if near else "write `fabric: tcp`"
            yield error("no_efa", f"groups.{name}.fabric", message, fix)


def one_zone(spec: ClusterSpec) -> Iterator[Issue]:
    """EFA traffic does not leave its zone: a job on nodes of two zones would fail when it starts."""
    if aws_section(spec) is None or spec.network.vpc_id:
        return
    for name, group in spec.groups.items():
        usable = group.capacity.zones or zones(spec)
        if group.fabric == "efa" and len(usable) > 1 and most(group) > 1:
            message = f"nodes may be in {', '.join(usable)}, but EFA does not cross zones; allowed: one zone"
            fix = f"write `zones: [{usable[0]}]` under `capacity:`, or make one group per zone"
            yield error("efa_zones", f"groups.{name}.capacity.zones", message, fix)


def one_subnet(spec: ClusterSpec) -> Iterator[Issue]:
    """In an existing VPC the zones of the subnets are not known here: one of them must be named."""
    if not spec.network.vpc_id or len(spec.network.subnet_ids) <= 1:
        return
    for name, group in spec.groups.items():
        if group.fabric == "efa" and most(group) > 1 and len(group.capacity.zones) != 1:
            message = (
                f"{len(spec.network.subnet_ids)} subnets are given, but EFA does not cross zones; allowed: one zone"
            )
            fix = "name the zone of one of the subnets, for example `zones: [us-east-1a]` under `capacity:`"
            yield error("efa_zones", f"groups.{name}.capacity.zones", message, fix)


def unused(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (group, found) in groups(spec).items():
        if group.fabric == "tcp" and found.efa_interfaces and found.gpus.count and most(group) > 1:
            message = (
                f"'tcp' leaves the {found.efa_interfaces} EFA interfaces of {found.name} unused: training is slower"
            )
            yield warning("efa_unused", f"groups.{name}.fabric", message, "write `fabric: efa`; it costs nothing")


def alone(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        if group.fabric == "efa" and most(group) == 1:
            message = "'efa' has no effect: one node has nobody to talk to"
            yield warning("efa_alone", f"groups.{name}.fabric", message, "write `fabric: tcp`, or a higher count")


def scattered(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (group, found) in groups(spec).items():
        free = set(purchases(group)) - set(RESERVED)
        if (
            group.fabric == "efa"
            and group.capacity.placement == "none"
            and most(group) > 1
            and free
            and found.placement
        ):
            message = "'none' lets nodes stand far apart: what crosses EFA is slower and less even"
            yield warning("efa_scattered", f"groups.{name}.capacity.placement", message, "write `placement: auto`")


def ip_bandwidth(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (group, found) in groups(spec).items():
        if group.ip_bandwidth and (group.fabric != "efa" or len(found.network_cards) == 1):
            cards = "1 network card" if len(found.network_cards) == 1 else f"fabric '{group.fabric}'"
            message = f"true has no effect: {found.name} with {cards} has one interface"
            yield warning("ip_bandwidth", f"groups.{name}.ip_bandwidth", message, "remove it")


def _near(found: InstanceType) -> list[str]:
    """Types of the same family with EFA, the smallest first."""
    family = [other for other in all_types().values() if other.family == found.family and other.efa_interfaces]
    return [other.name for other in sorted(family, key=lambda other: (other.vcpus, other.name))]
