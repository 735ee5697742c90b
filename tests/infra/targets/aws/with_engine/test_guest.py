"""In a VPC that exists: only what the cluster needs is added to it, nodes come and go by number, the VPC stays."""

from __future__ import annotations

import json

import pytest

from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.infra.targets.aws.with_engine.everything import everything
from tests.moto_server import REGION, Moto


@pytest.fixture(scope="module")
def guest(make: MakeStack, account: Moto) -> CloudStack:
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    zone = {"CidrBlock": "10.9.1.0/24", "AvailabilityZone": f"{REGION}a"}
    subnet = ec2.create_subnet(VpcId=vpc, **zone)["Subnet"]["SubnetId"]
    efs = account.client("efs")
    files = efs.create_file_system(CreationToken="theirs")["FileSystemId"]
    efs.create_mount_target(FileSystemId=files, SubnetId=subnet)
    return make(
        "aws-existing-vpc",
        aws={"region": REGION, "zones": [f"{REGION}a"]},
        network={"vpc_id": vpc, "subnet_ids": [subnet]},
        storage={"shared": {"kind": "existing", "id": files}},
    )


@pytest.fixture(scope="module")
def theirs(guest: CloudStack) -> set[str]:
    """The account before."""
    return everything(guest.cloud)


def test_up_adds_no_network(guest: CloudStack, theirs: set[str]) -> None:
    guest.up()
    made = everything(guest.cloud) - theirs
    assert machines(guest) == ["controller", "l40s-1", "l40s-2", "login"]
    assert {one.split()[0] for one in made} & {"Vpcs", "Subnets", "NatGateways", "RouteTables", "VpcEndpoints"} == set()


def test_another_count_starts_and_ends_only_those_nodes(guest: CloudStack) -> None:
    before = ids(guest)
    guest.spec["groups"]["l40s"]["count"] = 1
    guest.up()
    assert machines(guest) == ["controller", "l40s-1", "login"]
    assert set(ids(guest)) < set(before)


def test_up_again_changes_nothing(guest: CloudStack) -> None:
    before = everything(guest.cloud)
    guest.unchanged()
    assert everything(guest.cloud) == before


def test_teardown_leaves_what_was_there_and_names_what_it_may_not_look_at(
    guest: CloudStack, theirs: set[str], account: Moto
) -> None:
    account.fail("DescribeFlowLogs", "UnauthorizedOperation", times=99)
    said = guest.muster("teardown", "--yes", check=False)
    account.faults.clear()
    assert "not searched: ec2 (flow log) because UnauthorizedOperation" in said
    assert "is left" not in said
    assert (guest.receipt["left"], guest.receipt["unseen"]) == (0, ["ec2 (flow log) because UnauthorizedOperation"])
    assert everything(guest.cloud) == theirs


def test_once_it_may_look_everywhere_the_next_teardown_ends_well(guest: CloudStack, theirs: set[str]) -> None:
    assert "nothing of cluster guest is left" in guest.teardown()
    assert guest.receipt["unseen"] == []
    assert everything(guest.cloud) == theirs


def running(stack: CloudStack) -> list[dict[str, object]]:
    states = [{"Name": "instance-state-name", "Values": ["running"]}]
    found = stack.cloud.client("ec2").describe_instances(Filters=states)["Reservations"]
    return [one for reservation in found for one in reservation["Instances"]]


def ids(stack: CloudStack) -> list[object]:
    return [one["InstanceId"] for one in running(stack)]


def machines(stack: CloudStack) -> list[str]:
    reported = stack.cloud.client("ssm").get_parameters_by_path(Path=f"/muster/{stack.spec['name']}/nodes")
    there = {one["InstanceId"] for one in running(stack)}
    said = {one["Name"].rpartition("/")[2]: json.loads(one["Value"])["instance"] for one in reported["Parameters"]}
    return sorted(name for name, instance in said.items() if instance in there)
