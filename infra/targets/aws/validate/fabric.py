"""Rules about EFA: types that have it, zones it cannot cross, and options without effect."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.catalog.instances import InstanceType, all_types
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.capacity import RESERVED, purchases
from infra.targets.aws.plan.network import zones
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import count_max_nodes, list_typed_groups


def check_efa_support(spec: ClusterSpec) -> Iterator[Issue]:
    """Report EFA on types without it."""
    for name, (group, machine) in list_typed_groups(spec).items():
        if group.fabric == "efa" and not machine.efa_interfaces:
            siblings = _list_efa_siblings(machine)
            message = f"{machine.name} has no EFA; types of its family that have it: {', '.join(siblings) or 'none'}"
            fix = f"write `instance_type: {siblings[0]}`, or `fabric: tcp`" if siblings else "write `fabric: tcp`"
            yield error("no_efa", f"groups.{name}.fabric", message, fix)


def check_efa_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Report EFA groups over several zones: EFA traffic cannot leave a zone, so their jobs would fail at the start."""
    if aws_section(spec) is None or spec.network.vpc_id:
        return
    for name, group in spec.groups.items():
        group_zones = group.capacity.zones or zones(spec)
        if group.fabric == "efa" and len(group_zones) > 1 and count_max_nodes(group) > 1:
            message = f"nodes may be in {', '.join(group_zones)}, but EFA does not cross zones; allowed: one zone"
            fix = f"write `zones: [{group_zones[0]}]` under `capacity:`, or make one group per zone"
            yield error("efa_zones", f"groups.{name}.capacity.zones", message, fix)


def check_efa_subnets(spec: ClusterSpec) -> Iterator[Issue]:
    """Report EFA groups over several existing subnets, whose zones are not in the spec."""
    if not spec.network.vpc_id or len(spec.network.subnet_ids) <= 1:
        return
    for name, group in spec.groups.items():
        if group.fabric == "efa" and count_max_nodes(group) > 1 and len(group.capacity.zones) != 1:
            message = (
                f"{len(spec.network.subnet_ids)} subnets are given, but EFA does not cross zones; allowed: one zone"
            )
            fix = "name the zone of one of the subnets, for example `zones: [us-east-1a]` under `capacity:`"
            yield error("efa_zones", f"groups.{name}.capacity.zones", message, fix)


def check_unused_efa(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about GPU groups that leave their EFA interfaces unused."""
    for name, (group, machine) in list_typed_groups(spec).items():
        if group.fabric == "tcp" and machine.efa_interfaces and machine.gpus.count and count_max_nodes(group) > 1:
            message = (
                f"'tcp' leaves the {machine.efa_interfaces} EFA interfaces of {machine.name} unused: training is slower"
            )
            yield warning("efa_unused", f"groups.{name}.fabric", message, "write `fabric: efa`; it costs nothing")


def check_single_efa_node(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about EFA for a group of a single node."""
    for name, group in spec.groups.items():
        if group.fabric == "efa" and count_max_nodes(group) == 1:
            message = "'efa' has no effect: a single node has no peers"
            yield warning("efa_alone", f"groups.{name}.fabric", message, "write `fabric: tcp`, or a higher count")


def check_efa_placement(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about EFA between nodes that may be far apart."""
    for name, (group, machine) in list_typed_groups(spec).items():
        unreserved = set(purchases(group)) - set(RESERVED)
        if (
            group.fabric == "efa"
            and group.capacity.placement == "none"
            and count_max_nodes(group) > 1
            and unreserved
            and machine.placement
        ):
            message = "'none' allows nodes far apart: EFA traffic is slower and less consistent"
            yield warning("efa_scattered", f"groups.{name}.capacity.placement", message, "write `placement: auto`")


def check_ip_bandwidth(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about ip_bandwidth where it adds no interface."""
    for name, (group, machine) in list_typed_groups(spec).items():
        if group.ip_bandwidth and (group.fabric != "efa" or len(machine.network_cards) == 1):
            cards = "1 network card" if len(machine.network_cards) == 1 else f"fabric '{group.fabric}'"
            message = f"true has no effect: {machine.name} with {cards} has one interface"
            yield warning("ip_bandwidth", f"groups.{name}.ip_bandwidth", message, "remove it")


def _list_efa_siblings(machine: InstanceType) -> list[str]:
    """Return types of the same family with EFA, the smallest first."""
    family = [other for other in all_types().values() if other.family == machine.family and other.efa_interfaces]
    return [other.name for other in sorted(family, key=lambda other: (other.vcpus, other.name))]
