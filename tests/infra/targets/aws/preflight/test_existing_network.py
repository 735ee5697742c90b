"""Pre-flight of an existing VPC, in moto: the exact message for each thing that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.preflight import existing_network
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from infra.targets.aws.spec import aws_section
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues, issue_codes
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
ABSENT = "0123456789abcdef0"


@dataclass
class ExistingVpc:
    """An existing VPC with one subnet and its route table."""

    ec2: Any
    vpc: str
    subnet: str
    table: str

    def route(self, **to: str) -> None:
        self.ec2.create_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", **to)


@pytest.fixture
def site(aws: Moto) -> ExistingVpc:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    return ExistingVpc(ec2, vpc, subnet, table)


def spec_in(site: ExistingVpc, *subnets: str, zones: tuple[str, ...] = ("us-east-1a",), **changes: Any) -> ClusterSpec:
    return spec(
        aws={"region": "us-east-1", "zones": list(zones)},
        network={"vpc_id": site.vpc, "subnet_ids": list(subnets or (site.subnet,))},
        **{"groups": group(instance_type="g6.8xlarge"), **changes},
    )


def check(canned_aws: CannedAws, described: ClusterSpec, running: tuple[RunningInstance, ...] = ()) -> list[str]:
    return format_issues(existing_network.check_network(Subject(described, canned_aws.account, ME, running)))


def add_nat_gateway(site: ExistingVpc) -> None:
    address = site.ec2.allocate_address(Domain="vpc")["AllocationId"]
    gateway = site.ec2.create_nat_gateway(SubnetId=site.subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    site.route(NatGatewayId=gateway)


def test_a_private_subnet_with_a_nat_gateway_is_fine(canned_aws: CannedAws, site: ExistingVpc) -> None:
    add_nat_gateway(site)
    assert check(canned_aws, spec_in(site)) == []


def test_without_an_existing_network_no_call_is_made(canned_aws: CannedAws, aws: Moto) -> None:
    assert check(canned_aws, spec()) == []
    assert aws.of("DescribeVpcs") == []


def test_a_missing_vpc_is_an_error(canned_aws: CannedAws, site: ExistingVpc) -> None:
    missing = ExistingVpc(site.ec2, f"vpc-{ABSENT}", site.subnet, "")
    assert check(canned_aws, spec_in(missing)) == [
        f"error vpc_missing network.vpc_id: 'vpc-{ABSENT}' does not exist in us-east-1 of account 123456789012; "
        "fix: name one that `aws ec2 describe-vpcs` lists"
    ]


def test_a_missing_subnet_is_an_error(canned_aws: CannedAws, site: ExistingVpc) -> None:
    add_nat_gateway(site)
    assert check(canned_aws, spec_in(site, site.subnet, f"subnet-{ABSENT}", zones=("us-east-1a", "us-east-1b"))) == [
        f"error subnet_missing network.subnet_ids[1]: 'subnet-{ABSENT}' does not exist in us-east-1 of account "
        "123456789012; fix: name one that `aws ec2 describe-subnets` lists"
    ]


def test_a_subnet_of_another_vpc_is_an_error(canned_aws: CannedAws, site: ExistingVpc) -> None:
    other = site.ec2.create_vpc(CidrBlock="10.2.0.0/16")["Vpc"]["VpcId"]
    subnet = site.ec2.create_subnet(VpcId=other, CidrBlock="10.2.0.0/24", AvailabilityZone="us-east-1a")
    name = subnet["Subnet"]["SubnetId"]
    assert check(canned_aws, spec_in(site, name))[0] == (
        f"error subnet_of_other_vpc network.subnet_ids[0]: '{name}' belongs to {other}, not to {site.vpc}; "
        "fix: name a subnet of the same VPC"
    )


def test_a_subnet_in_another_zone_is_an_error(canned_aws: CannedAws, site: ExistingVpc) -> None:
    add_nat_gateway(site)
    assert check(canned_aws, spec_in(site, zones=("us-east-1b",))) == [
        f"error subnet_zone network.subnet_ids[0]: '{site.subnet}' is in us-east-1a, but aws.zones says us-east-1b; "
        "fix: write `us-east-1a` at that position of aws.zones"
    ]


def test_a_public_subnet_is_an_error(canned_aws: CannedAws, site: ExistingVpc) -> None:
    gateway = site.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    site.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=site.vpc)
    site.route(GatewayId=gateway)
    assert check(canned_aws, spec_in(site)) == [
        f"error subnet_public network.subnet_ids[0]: '{site.subnet}' is public, with a route to an internet gateway; "
        "nodes have no public address; fix: name a private subnet, or change its route table"
    ]


def test_a_subnet_without_internet_access_is_a_warning_unless_egress_is_off(
    canned_aws: CannedAws, site: ExistingVpc
) -> None:
    (message,) = check(canned_aws, spec_in(site))
    assert message == (
        f"warning subnet_no_way_out network.subnet_ids[0]: '{site.subnet}' has no route to the internet: nodes reach "
        "only services with a VPC endpoint; fix: add endpoints for ssm, ssmmessages, ec2, s3, route53 and "
        "what "
        "jobs fetch, or a NAT gateway"
    )
    closed = spec_in(site)
    closed = closed.model_copy(update={"network": closed.network.model_copy(update={"egress": False})})
    assert check(canned_aws, closed) == []


def test_dns_hostnames_are_required(canned_aws: CannedAws, site: ExistingVpc) -> None:
    add_nat_gateway(site)
    site.ec2.modify_vpc_attribute(VpcId=site.vpc, EnableDnsHostnames={"Value": False})
    assert check(canned_aws, spec_in(site)) == [
        f"error vpc_dns network.vpc_id: '{site.vpc}' has enableDnsHostnames off: nodes could not find each other by "
        f"name; fix: `aws ec2 modify-vpc-attribute --vpc-id {site.vpc} --enable-dns-hostnames`"
    ]


@pytest.mark.fault(28)
def test_a_subnet_needs_a_free_address_for_every_interface(canned_aws: CannedAws, site: ExistingVpc) -> None:
    """About 250 are free; a p5 with `ip_bandwidth` takes eight; controller, login and EFS take one each."""
    add_nat_gateway(site)
    wide = {"instance_type": "p5.48xlarge", "fabric": "efa", "ip_bandwidth": True}
    assert check(canned_aws, spec_in(site, groups=group(count=30, **wide))) == []
    free = site.ec2.describe_subnets(SubnetIds=[site.subnet])["Subnets"][0]["AvailableIpAddressCount"]
    assert check(canned_aws, spec_in(site, groups=group(count=32, **wide))) == [
        f"error subnet_full network.subnet_ids[0]: '{site.subnet}' has {free} free addresses; the cluster needs 259 "
        "there; fix: use a larger subnet, or fewer nodes"
    ]
    running = tuple(RunningInstance("p5.48xlarge", False, site.subnet, 8, "") for _ in range(4))
    assert check(canned_aws, spec_in(site, groups=group(count=32, **wide)), running) == []


def test_types_must_be_sold_in_the_zones_of_the_subnets(canned_aws: CannedAws, site: ExistingVpc) -> None:
    """If the spec names no zones, the zones of the subnets apply."""
    add_nat_gateway(site)
    described = spec_in(site)
    section = aws_section(described)
    assert section
    unnamed = described.model_copy(update={"aws": section.model_copy(update={"zones": ()})})
    offers = [
        {"InstanceType": "g6.8xlarge", "Location": "us-east-1f"},
        {"InstanceType": "m7i.xlarge", "Location": "us-east-1a"},
    ]
    offers += [{"InstanceType": "m7i.large", "Location": "us-east-1a"}]
    canned_aws.answer("ec2", "DescribeInstanceTypeOfferings", {"InstanceTypeOfferings": offers})
    assert check(canned_aws, unnamed) == [
        "error not_offered groups.gpu.instance_type: g6.8xlarge is not sold in us-east-1a, where the subnets are; "
        "fix: use a subnet in another zone, or another type"
    ]


def test_a_subnet_without_a_route_table_uses_the_main_one(canned_aws: CannedAws, site: ExistingVpc) -> None:
    bare = site.ec2.create_subnet(VpcId=site.vpc, CidrBlock="10.1.1.0/24", AvailabilityZone="us-east-1a")
    name = bare["Subnet"]["SubnetId"]
    reported = issue_codes(existing_network.check_network(Subject(spec_in(site, name), canned_aws.account, ME)))
    assert reported == [("warning", "subnet_no_way_out")]
