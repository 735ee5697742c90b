"""A VPC that exists: its subnets are there, private, in the zones that are named, with room for every address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.offerings import offered_zones
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.network import addresses_needed
from infra.targets.aws.validate.types import named

Subnet = Mapping[str, Any]
Table = Mapping[str, Any]

_MISSING = ("InvalidVpcID.NotFound", "InvalidSubnetID.NotFound")


def usable(subject: Subject) -> Iterator[Issue]:
    section = aws_section(subject.spec)
    spec, vpc = subject.spec, subject.spec.network.vpc_id
    if not vpc:
        return
    ec2 = subject.client("ec2")
    if not _there(ec2.describe_vpcs, "Vpcs", VpcIds=[vpc]):
        message = f"'{vpc}' does not exist in {subject.region} of account {subject.identity.account}"
        yield error("vpc_missing", "network.vpc_id", message, "name one that `aws ec2 describe-vpcs` lists")
        return
    yield from _names_work(ec2, vpc)
    found = {
        one: next(iter(_there(ec2.describe_subnets, "Subnets", SubnetIds=[one])), None)
        for one in spec.network.subnet_ids
    }
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    for number, (one, subnet) in enumerate(found.items()):
        where = f"network.subnet_ids[{number}]"
        if subnet is None:
            message = f"'{one}' does not exist in {subject.region} of account {subject.identity.account}"
            yield error("subnet_missing", where, message, "name one that `aws ec2 describe-subnets` lists")
            continue
        yield from judge(spec, number, subnet, routes_of(one, tables))
        yield from room(spec, number, subnet, sum(r.addresses for r in subject.running if r.subnet == one))
    if not (section and section.zones):
        yield from _offered(subject, {subnet["AvailabilityZone"] for subnet in found.values() if subnet})


def judge(spec: ClusterSpec, number: int, subnet: Subnet, routes: list[Mapping[str, Any]]) -> Iterator[Issue]:
    section = aws_section(spec)
    where, name = f"network.subnet_ids[{number}]", subnet["SubnetId"]
    if subnet["VpcId"] != spec.network.vpc_id:
        message = f"'{name}' belongs to {subnet['VpcId']}, not to {spec.network.vpc_id}"
        yield error("subnet_of_other_vpc", where, message, "name a subnet of the same VPC")
    wanted = section.zones[number] if section and number < len(section.zones) else None
    if wanted and subnet["AvailabilityZone"] != wanted:
        message = f"'{name}' is in {subnet['AvailabilityZone']}, but aws.zones says {wanted}"
        yield error("subnet_zone", where, message, f"write `{subnet['AvailabilityZone']}` at that place of aws.zones")
    if any(route.get("GatewayId", "").startswith("igw-") for route in routes):
        message = f"'{name}' is public, with a route to an internet gateway; nodes have no public address"
        yield error("subnet_public", where, message, "name a private subnet, or change its route table")
    elif spec.network.egress and not any(route.get("DestinationCidrBlock") == "0.0.0.0/0" for route in routes):
        message = f"'{name}' has no route to the outside: nodes reach only what the VPC has endpoints for"
        fix = "endpoints for ssm, ssmmessages, ec2messages, ec2, s3, route53 and what jobs fetch, or a NAT gateway"
        yield warning("subnet_no_way_out", where, message, fix)


def room(spec: ClusterSpec, number: int, subnet: Subnet, held: int) -> Iterator[Issue]:
    """What the cluster's running nodes have is not needed a second time; its storage may be counted twice then."""
    needed = addresses_needed(spec, subnet["AvailabilityZone"], first=number == 0) - held
    free = subnet["AvailableIpAddressCount"]
    if needed > free:
        more = " more" if held else ""
        message = f"'{subnet['SubnetId']}' has {free} free addresses; the cluster needs {needed}{more} there"
        make = warning if held else error
        yield make("subnet_full", f"network.subnet_ids[{number}]", message, "a larger subnet, or fewer nodes")


def routes_of(subnet: str, tables: list[Table]) -> list[Mapping[str, Any]]:
    """Of its own table, or of the VPC's main one where it has none."""
    own = [t for t in tables if any(a.get("SubnetId") == subnet for a in t["Associations"])]
    main = [t for t in tables if any(a.get("Main") for a in t["Associations"])]
    return [route for table in (own or main)[:1] for route in table["Routes"]]


def _names_work(ec2: Any, vpc: str) -> Iterator[Issue]:
    """The private zone with the nodes' names answers only where both are on."""
    for attribute in ("enableDnsSupport", "enableDnsHostnames"):
        said = ec2.describe_vpc_attribute(VpcId=vpc, Attribute=attribute)
        if not said[attribute[0].upper() + attribute[1:]]["Value"]:
            option = f"--{'enable-dns-support' if attribute.endswith('Support') else 'enable-dns-hostnames'}"
            message = f"'{vpc}' has {attribute} off: nodes could not find each other by name"
            yield error("vpc_dns", "network.vpc_id", message, f"`aws ec2 modify-vpc-attribute --vpc-id {vpc} {option}`")


def _offered(subject: Subject, there: set[str]) -> Iterator[Issue]:
    """Of subnets whose zones the spec does not name."""
    offers = offered_zones(subject.client("ec2"), sorted(set(named(subject.spec).values())))
    for where, name in named(subject.spec).items():
        if there and not there & set(offers[name]):
            message = f"{name} is not sold in {', '.join(sorted(there))}, where the subnets are"
            yield error("not_offered", f"{where}.instance_type", message, "a subnet in another zone, or another type")


def _there(describe: Any, key: str, **asked: Any) -> list[Mapping[str, Any]]:
    try:
        found: list[Mapping[str, Any]] = describe(**asked)[key]
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return []
        raise
    return found
