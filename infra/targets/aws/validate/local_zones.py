"""Rules about Local Zones, which lack services that a cluster needs: only compute nodes can be there.

UltraServers of p6e-gb200 are sold in one (docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-launch.html).
Services of each Local Zone: aws.amazon.com/about-aws/global-infrastructure/localzones/features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.targets.aws.spec import aws_section


def is_local_zone(zone: str, region: str) -> bool:
    """Return whether a zone is a Local Zone of the region, such as us-east-1-dfw-2a."""
    return re.fullmatch(re.escape(region) + r"-[a-z]+-\d+[a-z]", zone) is not None


def check_local_zones(spec: ClusterSpec) -> Iterator[Issue]:
    """Report Local Zones without an existing subnet: interface endpoints cannot be created there."""
    if spec.network.vpc_id:
        return
    for where, zone in _list_local_zones(spec).items():
        message = f"'{zone}' is a Local Zone, in which no network is created; allowed: subnets of an existing VPC"
        fix = "name the VPC in `network.vpc_id`, and subnets of a zone of the region and of the Local Zone"
        yield error("local_zone_network", where, message, fix)


def check_first_zone(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a Local Zone that would have controller and storage."""
    section = aws_section(spec)
    if section and section.zones and is_local_zone(section.zones[0], section.region):
        message = (
            f"'{section.zones[0]}' is a Local Zone, but the first zone has controller and storage; allowed: the region "
            "and one letter"
        )
        fix = f"write for example `zones: [{section.region}a, {section.zones[0]}]`, and the subnets in the same order"
        yield error("local_zone_first", "aws.zones[0]", message, fix)


def check_local_zone_storage(spec: ClusterSpec) -> Iterator[Issue]:
    """Report EFS with nodes in a Local Zone, where it has no mount targets."""
    zones = _list_local_zones(spec).values()
    for name, storage in spec.storage.items():
        if storage.kind == "efs" and zones:
            message = (
                f"'efs' cannot be mounted in the Local Zone {next(iter(zones))}; allowed: fsx-lustre, existing (Lustre)"
            )
            yield error("local_zone_efs", f"storage.{name}.kind", message, "write `kind: fsx-lustre`")


def _list_local_zones(spec: ClusterSpec) -> dict[str, str]:
    """Return the Local Zones by the property that names them."""
    section = aws_section(spec)
    if section is None:
        return {}
    places = {"aws.zones": section.zones} | {
        f"groups.{name}.capacity.zones": group.capacity.zones for name, group in spec.groups.items()
    }
    return {
        f"{where}[{index}]": zone
        for where, named in places.items()
        for index, zone in enumerate(named)
        if is_local_zone(zone, section.region)
    }
