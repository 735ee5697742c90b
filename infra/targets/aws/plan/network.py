"""Availability zones, subnets and endpoints of a cluster's VPC."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.spec import aws_section

AUTO = "auto"
"""Stands for the zone that offers every instance type, which has to be looked up in AWS."""
CIDR = "10.88.0.0/16"
# The smallest subnet that AWS allows; the NAT gateway needs one address.
_PUBLIC_PREFIX = 28
SSM_ENDPOINTS = ("ssm", "ssmmessages")
"""Endpoints of Systems Manager, through which users reach the nodes even without a NAT gateway.

ec2messages, which newer regions may lack, is not among them: since version 3.3.40 of 2024 the agent uses ssmmessages
instead (docs.aws.amazon.com/systems-manager/latest/userguide/systems-manager-setting-up-messageAPIs.html).
"""
OFFLINE_ENDPOINTS = ("ec2",)
"""Endpoints that the controller needs to launch nodes if the network has no egress."""


class NoRoom(ValueError):
    """The address range is too small for the subnets."""


@dataclass(frozen=True)
class Subnet:
    """A subnet of a VPC that is created."""

    name: str
    zone: str
    cidr: str
    public: bool = False


@dataclass(frozen=True)
class Place:
    """Where nodes can be: a zone, and its subnet if that exists already."""

    zone: str
    subnet_id: str | None = None

    @property
    def label(self) -> str:
        return self.subnet_id or self.zone


def zones(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the zones of a new VPC in the order of the spec; the first has controller, login and storage."""
    section = aws_section(spec)
    assert section  # noqa: S101  # validators refuse target aws without it
    group_zones = (zone for group in spec.groups.values() for zone in group.capacity.zones)
    return section.zones or tuple(dict.fromkeys(group_zones)) or (AUTO,)


def places(spec: ClusterSpec) -> tuple[Place, ...]:
    """Return where nodes can be.

    The zones of existing subnets are AUTO, unless the spec lists as many zones as subnets, in the same order.
    """
    section = aws_section(spec)
    if not spec.network.vpc_id:
        return tuple(Place(zone) for zone in zones(spec))
    named_zones = section.zones if section and len(section.zones) == len(spec.network.subnet_ids) else ()
    return tuple(
        Place(named_zones[number] if named_zones else AUTO, subnet)
        for number, subnet in enumerate(spec.network.subnet_ids)
    )


def places_of(spec: ClusterSpec, group: NodeGroup) -> tuple[Place, ...]:
    """Return where the group's nodes may be; places with zone AUTO may drop out once their zone is looked up."""
    named = group.capacity.zones
    candidates = [place for place in places(spec) if not named or place.zone in (AUTO, *named)]
    return tuple(sorted(candidates, key=lambda place: named.index(place.zone) if place.zone in named else len(named)))


def subnets(spec: ClusterSpec) -> tuple[Subnet, ...]:
    """Return a private subnet per zone, as large as the range allows, and a small public one for the NAT gateway.

    The gateway is in the controller's zone: if that zone fails, so does the cluster that would use the gateway.
    """
    if spec.network.vpc_id:
        return ()
    network, subnet_zones = IPv4Network(cidr(spec)), zones(spec)
    # One range more than there are zones: the public subnet is in the last one.
    prefix = network.prefixlen + len(subnet_zones).bit_length()
    if prefix > _PUBLIC_PREFIX:
        raise NoRoom(
            f"network.cidr: {network} cannot hold a private subnet in each of {len(subnet_zones)} zones. "
            f"Fix: write a range of at least /{_PUBLIC_PREFIX - len(subnet_zones).bit_length()}"
        )
    ranges = tuple(network.subnets(new_prefix=prefix))
    private = tuple(
        Subnet(f"private-{zone}", zone, str(range_)) for zone, range_ in zip(subnet_zones, ranges, strict=False)
    )
    if not spec.network.egress:
        return private
    last = next(ranges[-1].subnets(new_prefix=max(_PUBLIC_PREFIX, prefix)))
    return (*private, Subnet(f"public-{subnet_zones[0]}", subnet_zones[0], str(last), public=True))


def cidr(spec: ClusterSpec) -> str:
    """Return the address range of a new VPC."""
    return spec.network.cidr or CIDR


def endpoints(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the services with interface endpoints, which cost money each; none in an existing VPC."""
    if spec.network.vpc_id:
        return ()
    return SSM_ENDPOINTS if spec.network.egress else (*SSM_ENDPOINTS, *OFFLINE_ENDPOINTS)
