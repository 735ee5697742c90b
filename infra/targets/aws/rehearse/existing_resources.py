"""What a stack's user has in the account before `up`: the simulated account gets all that the spec names by id."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from typing import Any
from urllib.parse import urlsplit

from moto.ec2.models import ec2_backends, subnets, vpcs
from moto.ec2.models.amis import Ami
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend, Zone
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.efs import models as efs
from moto.iam.models import iam_backends
from moto.kms import models as kms
from moto.s3.models import s3_backends

from cluster.spec import ClusterSpec
from infra.targets.aws.plan import machines, network
from infra.targets.aws.rehearse.moto_account import MotoAccount
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.local_zones import is_local_zone

_SERVICES = ("budgets", "ec2", "ec2messages", "kms", "logs", "route53", "s3", "ssm", "ssmmessages", "sts")
_BOUNDARY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": [f"{service}:*" for service in _SERVICES], "Resource": "*"},
        {"Effect": "Allow", "Action": "iam:PassRole", "Resource": "*"},
    ],
}
"""A boundary as an organization has it: only the services that machines need, and no change of permissions."""
_INTERNET = "0.0.0.0/0"
# Enough private subnets, and one for the NAT gateway.
_SUBNET_BITS = 3


def create_existing(spec: ClusterSpec, account: MotoAccount, cidr: str) -> None:
    """Create what the spec names by id, under these ids; `cidr` is the address range of an existing VPC."""
    section = aws_section(spec)
    assert section  # noqa: S101  # validators refuse target aws without it
    ec2 = ec2_backends[account.id][account.region]
    for image in filter(None, (section.ami, section.plain_ami, *(group.image for group in spec.groups.values()))):
        ec2.amis[image] = Ami(ec2, image, name=image, owner_id=account.id, state="available", root_device_type="ebs")
    if section.permissions_boundary:
        name = section.permissions_boundary.rpartition("/")[2]
        iam_backends[account.id]["aws"].create_policy("", "/", json.dumps(_BOUNDARY), name, [])
    if section.kms_key:
        _create_key(account, section.kms_key.rpartition("/")[2])
    _offer_types(spec, account.region)
    for group in spec.groups.values():
        if group.capacity.reservation:
            _create_reservation(ec2, group.capacity.reservation, machines.compute(group).name, spec)
    for bucket in {urlsplit(entry.s3).netloc for entry in spec.storage.values() if entry.s3}:
        s3_backends[account.id]["aws"].create_bucket(bucket, account.region)
    _create_storage(spec, account, _create_network(spec, ec2, cidr))


def _offer_types(spec: ClusterSpec, region: str) -> None:
    """Add the Local Zones of a spec to the region, and sell types newer than moto's table where the spec has them."""
    zones = RegionsAndZonesBackend.zones[region]
    for zone in network.zones(spec):
        if is_local_zone(zone, region) and zone not in [other.name for other in zones]:
            zones.append(Zone(zone, region, f"{zone}-id", "local-zone"))
    offers = INSTANCE_TYPE_OFFERINGS["availability-zone"][region]
    sold = {offer["InstanceType"] for offer in offers}
    for group in spec.groups.values():
        for kind in machines.compute_types(group):
            if kind.name not in sold:
                places = [zones[0].name if p.zone == network.AUTO else p.zone for p in network.places_of(spec, group)]
                offers += [
                    {"InstanceType": kind.name, "Location": place, "LocationType": "availability-zone"}
                    for place in places
                ]


def _create_network(spec: ClusterSpec, ec2: Any, cidr: str) -> list[Any]:
    """Create the VPC of a spec with a NAT gateway, if it names one, and return its private subnets."""
    if not spec.network.vpc_id:
        return []
    with _next_id(vpcs, "random_vpc_id", spec.network.vpc_id):
        vpc = ec2.create_vpc(cidr)
    ec2.modify_vpc_attribute(vpc.id, "enable_dns_hostnames", "true")
    ranges = [str(part) for part in IPv4Network(cidr).subnets(_SUBNET_BITS)]
    places = network.places(spec)
    zones = [next(iter(ec2.describe_availability_zones())).name if p.zone == network.AUTO else p.zone for p in places]
    public = ec2.create_subnet(vpc.id, ranges.pop(), availability_zone=zones[0])
    gateway = ec2.create_internet_gateway()
    ec2.attach_internet_gateway(gateway.id, vpc.id)
    table = ec2.create_route_table(vpc.id)
    ec2.create_route(table.id, _INTERNET, gateway_id=gateway.id)
    ec2.associate_route_table(table.id, subnet_id=public.id)
    nat = ec2.create_nat_gateway(public.id, ec2.allocate_address("vpc").allocation_id)
    private = ec2.create_route_table(vpc.id)
    ec2.create_route(private.id, _INTERNET, nat_gateway_id=nat.id)
    created = []
    for place, zone in zip(places, zones, strict=True):
        with _next_id(subnets, "random_subnet_id", place.subnet_id or ""):
            subnet = ec2.create_subnet(vpc.id, ranges.pop(0), availability_zone=zone)
        ec2.associate_route_table(private.id, subnet_id=subnet.id)
        created.append(subnet)
    return created


def _create_storage(spec: ClusterSpec, account: MotoAccount, private: list[Any]) -> None:
    """Create the existing filesystems of a spec, with a mount target in each private subnet of its VPC."""
    backend = efs.efs_backends[account.id][account.region]
    ids = [entry.id for entry in spec.storage.values() if entry.kind == "existing" and entry.id]
    for id_ in ids:
        with _next_id(efs.mock_random, "get_random_hex", id_.removeprefix("fs-")):
            backend.create_file_system(id_, "generalPurpose", False, "", "elastic", 0, "", False, [])
        for subnet in private:
            backend.create_mount_target(id_, subnet.id)


def _create_key(account: MotoAccount, id_: str) -> None:
    with _next_id(kms, "generate_key_id", id_):
        kms.kms_backends[account.id][account.region].create_key(
            None, "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "existing", None
        )


def _create_reservation(ec2: Any, id_: str, instance_type: str, spec: ClusterSpec) -> None:
    group = next(group for group in spec.groups.values() if group.capacity.reservation == id_)
    zone = next((place.zone for place in network.places_of(spec, group)), "")
    count = group.count or group.max or 0
    ec2.__dict__.setdefault("muster_capacity_reservations", {})[id_] = {
        "CapacityReservationId": id_,
        "InstanceType": instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": zone,
        "InstanceMatchCriteria": "targeted",
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "State": "active",
        "ReservationType": "capacity-block" if group.capacity.kind == "block" else "default",
        "Tags": [],
    }


@contextmanager
def _next_id(module: Any, function: str, id_: str) -> Iterator[None]:
    """Let moto give a certain id to what is created meanwhile, instead of a random one."""
    random = getattr(module, function)
    setattr(module, function, lambda *_args, **_options: id_)
    try:
        yield
    finally:
        setattr(module, function, random)
