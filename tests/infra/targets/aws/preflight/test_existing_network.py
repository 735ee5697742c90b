"""A VPC that exists, in moto: what is wrong with it, in exact words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.targets.aws.preflight import existing_network
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from infra.targets.aws.spec import aws_section
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import codes, words
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
ABSENT = "0123456789abcdef0"


@dataclass
class Place:
    """A VPC with one subnet and a NAT gateway beside it, as an organisation has it."""

    ec2: Any
    vpc: str
    subnet: str
    table: str

    def route(self, **to: str) -> None:
        self.ec2.create_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", **to)


@pytest.fixture
def place(aws: Moto) -> Place:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    return Place(ec2, vpc, subnet, table)


def in_it(place: Place, *subnets: str, zones: tuple[str, ...] = ("us-east-1a",), **changes: Any) -> ClusterSpec:
    return spec(
        aws={"region": "us-east-1", "zones": list(zones)},
        network={"vpc_id": place.vpc, "subnet_ids": list(subnets or (place.subnet,))},
        **{"groups": group(instance_type="g6.8xlarge"), **changes},
    )


def found(answered: Answered, described: ClusterSpec, running: tuple[RunningInstance, ...] = ()) -> list[str]:
    return words(existing_network.check_network(Subject(described, answered.account, ME, running)))


def with_nat(place: Place) -> None:
    address = place.ec2.allocate_address(Domain="vpc")["AllocationId"]
    gateway = place.ec2.create_nat_gateway(SubnetId=place.subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    place.route(NatGatewayId=gateway)


def test_a_private_subnet_with_a_way_out_is_fine(answered: Answered, place: Place) -> None:
    with_nat(place)
    assert found(answered, in_it(place)) == []


def test_no_existing_network_asks_nothing(answered: Answered, aws: Moto) -> None:
    assert found(answered, spec()) == []
    assert aws.of("DescribeVpcs") == []


def test_no_such_vpc(answered: Answered, place: Place) -> None:
    gone = Place(place.ec2, f"vpc-{ABSENT}", place.subnet, "")
    assert found(answered, in_it(gone)) == [
        f"error vpc_missing network.vpc_id: 'vpc-{ABSENT}' does not exist in us-east-1 of account 123456789012; "
        "fix: name one that `aws ec2 describe-vpcs` lists"
    ]


def test_no_such_subnet(answered: Answered, place: Place) -> None:
    with_nat(place)
    assert found(answered, in_it(place, place.subnet, f"subnet-{ABSENT}", zones=("us-east-1a", "us-east-1b"))) == [
        f"error subnet_missing network.subnet_ids[1]: 'subnet-{ABSENT}' does not exist in us-east-1 of account "
        "123456789012; fix: name one that `aws ec2 describe-subnets` lists"
    ]


def test_a_subnet_of_another_vpc(answered: Answered, place: Place) -> None:
    other = place.ec2.create_vpc(CidrBlock="10.2.0.0/16")["Vpc"]["VpcId"]
    subnet = place.ec2.create_subnet(VpcId=other, CidrBlock="10.2.0.0/24", AvailabilityZone="us-east-1a")
    name = subnet["Subnet"]["SubnetId"]
    assert found(answered, in_it(place, name))[0] == (
        f"error subnet_of_other_vpc network.subnet_ids[0]: '{name}' belongs to {other}, not to {place.vpc}; "
        "fix: name a subnet of the same VPC"
    )


def test_a_subnet_in_another_zone(answered: Answered, place: Place) -> None:
    with_nat(place)
    assert found(answered, in_it(place, zones=("us-east-1b",))) == [
        f"error subnet_zone network.subnet_ids[0]: '{place.subnet}' is in us-east-1a, but aws.zones says us-east-1b; "
        "fix: write `us-east-1a` at that position of aws.zones"
    ]


def test_a_public_subnet(answered: Answered, place: Place) -> None:
    gateway = place.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    place.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=place.vpc)
    place.route(GatewayId=gateway)
    assert found(answered, in_it(place)) == [
        f"error subnet_public network.subnet_ids[0]: '{place.subnet}' is public, with a route to an internet gateway; "
        "nodes have no public address; fix: name a private subnet, or change its route table"
    ]


def test_no_way_out(answered: Answered, place: Place) -> None:
    (said,) = found(answered, in_it(place))
    assert said == (
        f"warning subnet_no_way_out network.subnet_ids[0]: '{place.subnet}' has no route to the internet: nodes reach "
        "only services with a VPC endpoint; fix: add endpoints for ssm, ssmmessages, ec2messages, ec2, s3, route53 and "
        "what "
        "jobs fetch, or a NAT gateway"
    )
    shut = in_it(place)
    shut = shut.model_copy(update={"network": shut.network.model_copy(update={"egress": False})})
    assert found(answered, shut) == []


def test_names_need_dns(answered: Answered, place: Place) -> None:
    with_nat(place)
    place.ec2.modify_vpc_attribute(VpcId=place.vpc, EnableDnsHostnames={"Value": False})
    assert found(answered, in_it(place)) == [
        f"error vpc_dns network.vpc_id: '{place.vpc}' has enableDnsHostnames off: nodes could not find each other by "
        f"name; fix: `aws ec2 modify-vpc-attribute --vpc-id {place.vpc} --enable-dns-hostnames`"
    ]


def test_room_for_every_address(answered: Answered, place: Place) -> None:
    """250 are free; p5 has eight addresses with more IP bandwidth, controller, login and EFS have one each."""
    with_nat(place)
    wide = {"instance_type": "p5.48xlarge", "fabric": "efa", "ip_bandwidth": True}
    assert found(answered, in_it(place, groups=group(count=30, **wide))) == []
    free = place.ec2.describe_subnets(SubnetIds=[place.subnet])["Subnets"][0]["AvailableIpAddressCount"]
    assert found(answered, in_it(place, groups=group(count=32, **wide))) == [
        f"error subnet_full network.subnet_ids[0]: '{place.subnet}' has {free} free addresses; the cluster needs 259 "
        "there; fix: use a larger subnet, or fewer nodes"
    ]
    mine = tuple(RunningInstance("p5.48xlarge", False, place.subnet, 8, "") for _ in range(4))
    assert found(answered, in_it(place, groups=group(count=32, **wide)), mine) == []


def test_types_are_sold_where_subnets_are(answered: Answered, place: Place) -> None:
    """Where the spec names no zones, the subnets say where it is."""
    with_nat(place)
    described = in_it(place)
    section = aws_section(described)
    assert section
    unnamed = described.model_copy(update={"aws": section.model_copy(update={"zones": ()})})
    offers = [
        {"InstanceType": "g6.8xlarge", "Location": "us-east-1f"},
        {"InstanceType": "m7i.xlarge", "Location": "us-east-1a"},
    ]
    offers += [{"InstanceType": "m7i.large", "Location": "us-east-1a"}]
    answered.answer("ec2", "DescribeInstanceTypeOfferings", {"InstanceTypeOfferings": offers})
    assert found(answered, unnamed) == [
        "error not_offered groups.gpu.instance_type: g6.8xlarge is not sold in us-east-1a, where the subnets are; "
        "fix: use a subnet in another zone, or another type"
    ]


def test_the_main_table_counts_where_a_subnet_has_none(answered: Answered, place: Place) -> None:
    bare = place.ec2.create_subnet(VpcId=place.vpc, CidrBlock="10.1.1.0/24", AvailabilityZone="us-east-1a")
    name = bare["Subnet"]["SubnetId"]
    found_codes = codes(existing_network.check_network(Subject(in_it(place, name), answered.account, ME)))
    assert found_codes == [("warning", "subnet_no_way_out")]
