"""Checks of an existing VPC: its subnets exist, are private, in the named zones, and have enough addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from botocore.exceptions import ClientError

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.preflight.offerings import judge_subnets, list_spec_offerings
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.network import count_addresses

Subnet = Mapping[str, Any]
RouteTable = Mapping[str, Any]

_MISSING = ("InvalidVpcID.NotFound", "InvalidSubnetID.NotFound")


def check_network(subject: Subject) -> Iterator[Issue]:
    """Report what is wrong with the existing VPC and its subnets."""
    section = aws_section(subject.spec)
    spec, vpc = subject.spec, subject.spec.network.vpc_id
    if not vpc:
        return
    ec2 = subject.client("ec2")
    if not _describe(ec2.describe_vpcs, "Vpcs", VpcIds=[vpc]):
        message = f"'{vpc}' does not exist in {subject.region} of account {subject.identity.account}"
        yield error("vpc_missing", "network.vpc_id", message, "name one that `aws ec2 describe-vpcs` lists")
        return
    yield from _check_dns(ec2, vpc)
    subnets = {
        id_: next(iter(_describe(ec2.describe_subnets, "Subnets", SubnetIds=[id_])), None)
        for id_ in spec.network.subnet_ids
    }
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    for number, (id_, subnet) in enumerate(subnets.items()):
        where = f"network.subnet_ids[{number}]"
        if subnet is None:
            message = f"'{id_}' does not exist in {subject.region} of account {subject.identity.account}"
            yield error("subnet_missing", where, message, "name one that `aws ec2 describe-subnets` lists")
            continue
        yield from judge(spec, number, subnet, list_routes(id_, tables))
        yield from check_room(spec, number, subnet, sum(r.addresses for r in subject.running if r.subnet == id_))
    if not (section and section.zones):
        subnet_zones = [subnet["AvailabilityZone"] for subnet in subnets.values() if subnet]
        # A missing subnet is reported above; without it, the first of the others is not the controller's.
        if len(subnet_zones) == len(subnets):
            yield from judge_subnets(spec, subnet_zones, list_spec_offerings(subject))


def judge(spec: ClusterSpec, number: int, subnet: Subnet, routes: list[Mapping[str, Any]]) -> Iterator[Issue]:
    """Yield issues of a subnet: its VPC, its zone and its routes."""
    section = aws_section(spec)
    where, name = f"network.subnet_ids[{number}]", subnet["SubnetId"]
    if subnet["VpcId"] != spec.network.vpc_id:
        message = f"'{name}' belongs to {subnet['VpcId']}, not to {spec.network.vpc_id}"
        yield error("subnet_of_other_vpc", where, message, "name a subnet of the same VPC")
    zone = section.zones[number] if section and number < len(section.zones) else None
    if zone and subnet["AvailabilityZone"] != zone:
        message = f"'{name}' is in {subnet['AvailabilityZone']}, but aws.zones says {zone}"
        yield error(
            "subnet_zone", where, message, f"write `{subnet['AvailabilityZone']}` at that position of aws.zones"
        )
    if any(route.get("GatewayId", "").startswith("igw-") for route in routes):
        message = f"'{name}' is public, with a route to an internet gateway; nodes have no public address"
        yield error("subnet_public", where, message, "name a private subnet, or change its route table")
    elif spec.network.egress and not any(route.get("DestinationCidrBlock") == "0.0.0.0/0" for route in routes):
        message = f"'{name}' has no route to the internet: nodes reach only services with a VPC endpoint"
        fix = "add endpoints for ssm, ssmmessages, ec2, s3, route53 and what jobs fetch, or a NAT gateway"
        yield warning("subnet_no_way_out", where, message, fix)


def check_room(spec: ClusterSpec, number: int, subnet: Subnet, in_use: int) -> Iterator[Issue]:
    """Report too few free addresses; running nodes already have theirs, but their storage may be counted twice."""
    needed = count_addresses(spec, subnet["AvailabilityZone"], first=number == 0) - in_use
    free = subnet["AvailableIpAddressCount"]
    if needed > free:
        more = " more" if in_use else ""
        message = f"'{subnet['SubnetId']}' has {free} free addresses; the cluster needs {needed}{more} there"
        make = warning if in_use else error
        yield make("subnet_full", f"network.subnet_ids[{number}]", message, "use a larger subnet, or fewer nodes")


def list_routes(subnet: str, tables: list[RouteTable]) -> list[Mapping[str, Any]]:
    """Return the routes of the subnet's own table, or of the VPC's main table if it has none."""
    own = [t for t in tables if any(a.get("SubnetId") == subnet for a in t["Associations"])]
    main = [t for t in tables if any(a.get("Main") for a in t["Associations"])]
    return [route for table in (own or main)[:1] for route in table["Routes"]]


def _check_dns(ec2: Any, vpc: str) -> Iterator[Issue]:
    """Report DNS attributes that are off: the private zone with the nodes' names needs both."""
    for attribute in ("enableDnsSupport", "enableDnsHostnames"):
        response = ec2.describe_vpc_attribute(VpcId=vpc, Attribute=attribute)
        if not response[attribute[0].upper() + attribute[1:]]["Value"]:
            option = f"--{'enable-dns-support' if attribute.endswith('Support') else 'enable-dns-hostnames'}"
            message = f"'{vpc}' has {attribute} off: nodes could not find each other by name"
            yield error("vpc_dns", "network.vpc_id", message, f"`aws ec2 modify-vpc-attribute --vpc-id {vpc} {option}`")


def _describe(describe: Any, key: str, **query: Any) -> list[Mapping[str, Any]]:
    try:
        items: list[Mapping[str, Any]] = describe(**query)[key]
    except ClientError as failure:
        if failure.response["Error"]["Code"] in _MISSING:
            return []
        raise
    return items
