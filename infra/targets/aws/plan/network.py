"""Zones, subnets and endpoints of a cluster's VPC."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from cluster.spec import ClusterSpec, NodeGroup
from infra.targets.aws.spec import aws_section

AUTO = "auto"
"""Stands for the one zone that offers every instance type, which only AWS can name."""
CIDR = "10.88.0.0/16"
# The smallest subnet that AWS makes; a NAT gateway needs one address of it.
_PUBLIC_PREFIX = 28
SSM_ENDPOINTS = ("ssm", "ssmmessages", "ec2messages")
"""People reach the nodes through these, also when the NAT gateway is gone."""
OFFLINE_ENDPOINTS = ("ec2",)
"""What the controller calls to launch nodes, where nothing leads outside."""


class NoRoom(ValueError):
    """The address range is too small for the subnets."""


@dataclass(frozen=True)
class Subnet:
    name: str
    zone: str
    cidr: str
    public: bool = False


@dataclass(frozen=True)
class Place:
    """Where nodes can be: a zone, and the subnet in it where that exists already."""

    zone: str
    subnet_id: str | None = None

    @property
    def label(self) -> str:
        return self.subnet_id or self.zone


def zones(spec: ClusterSpec) -> tuple[str, ...]:
    """Of a VPC of its own, in the order of the spec; the first one also has controller, login and storage."""
    section = aws_section(spec)
    assert section  # noqa: S101  # validators refuse target aws without it
    wanted = (zone for group in spec.groups.values() for zone in group.capacity.zones)
    return section.zones or tuple(dict.fromkeys(wanted)) or (AUTO,)


def places(spec: ClusterSpec) -> tuple[Place, ...]:
    """In an existing VPC the zone of a subnet is known only to AWS, unless the spec names zones in the same order."""
    section = aws_section(spec)
    if not spec.network.vpc_id:
        return tuple(Place(zone) for zone in zones(spec))
    known = section.zones if section and len(section.zones) == len(spec.network.subnet_ids) else ()
    return tuple(
        Place(known[number] if known else AUTO, subnet) for number, subnet in enumerate(spec.network.subnet_ids)
    )


def places_of(spec: ClusterSpec, group: NodeGroup) -> tuple[Place, ...]:
    """Where the group's nodes may be; a place whose zone is not known yet may turn out not to be one of them."""
    wanted = group.capacity.zones
    found = [place for place in places(spec) if not wanted or place.zone in (AUTO, *wanted)]
    return tuple(sorted(found, key=lambda place: wanted.index(place.zone) if place.zone in wanted else len(wanted)))


def subnets(spec: ClusterSpec) -> tuple[Subnet, ...]:
    """One private subnet per zone, as large as the range allows; a small public one for the NAT gateway, in the zone
    of the controller: where that zone is lost, so is what would have used the gateway."""
    if spec.network.vpc_id:
        return ()
    network, wanted = IPv4Network(cidr(spec)), zones(spec)
    # One part more than there are zones: the public subnet lies in the last one.
    prefix = network.prefixlen + len(wanted).bit_length()
    if prefix > _PUBLIC_PREFIX:
        raise NoRoom(
            f"network.cidr: {network} cannot hold a private subnet in each of {len(wanted)} zones. "
            f"Fix: a range of at least /{_PUBLIC_PREFIX - len(wanted).bit_length()}"
        )
    parts = tuple(network.subnets(new_prefix=prefix))
    private = tuple(Subnet(f"private-{zone}", zone, str(part)) for zone, part in zip(wanted, parts, strict=False))
    if not spec.network.egress:
        return private
    last = next(parts[-1].subnets(new_prefix=max(_PUBLIC_PREFIX, prefix)))
    return (*private, Subnet(f"public-{wanted[0]}", wanted[0], str(last), public=True))


def cidr(spec: ClusterSpec) -> str:
    return spec.network.cidr or CIDR


def endpoints(spec: ClusterSpec) -> tuple[str, ...]:
    """Interface endpoints that cost money each; an existing VPC has its own ways out."""
    if spec.network.vpc_id:
        return ()
    return SSM_ENDPOINTS if spec.network.egress else (*SSM_ENDPOINTS, *OFFLINE_ENDPOINTS)
