"""A cluster in an existing VPC: it adds no network, resizes by node, and teardown leaves the VPC as it was."""

from __future__ import annotations

import json
import re

import pytest

from infra.targets.aws.rehearse.account_resources import list_resources
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.moto_server import REGION, Moto

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def stack(make_stack: MakeStack, account: Moto) -> CloudStack:
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    zone = {"CidrBlock": "10.9.1.0/24", "AvailabilityZone": f"{REGION}a"}
    subnet = ec2.create_subnet(VpcId=vpc, **zone)["Subnet"]["SubnetId"]
    efs = account.client("efs")
    filesystem = efs.create_file_system(CreationToken="theirs")["FileSystemId"]
    efs.create_mount_target(FileSystemId=filesystem, SubnetId=subnet)
    return make_stack(
        "aws-existing-vpc",
        aws={"region": REGION, "zones": [f"{REGION}a"]},
        network={"vpc_id": vpc, "subnet_ids": [subnet]},
        storage={"shared": {"kind": "existing", "id": filesystem}},
    )


@pytest.fixture(scope="module")
def existing(stack: CloudStack) -> set[str]:
    """Return the resources of the account before `up`."""
    return list_resources(stack.cloud)


def test_up_adds_no_network(stack: CloudStack, existing: set[str]) -> None:
    assert "retries took" not in stack.up()
    created = list_resources(stack.cloud) - existing
    assert list_nodes(stack) == ["controller", "l40s-1", "l40s-2", "login"]
    assert {resource.split()[0] for resource in created} & {
        "Vpcs",
        "Subnets",
        "NatGateways",
        "RouteTables",
        "VpcEndpoints",
    } == set()


@pytest.mark.fault(25)
def test_a_smaller_count_terminates_only_the_extra_nodes(stack: CloudStack, account: Moto) -> None:
    """`up` also says how long the retries of its processes took."""
    before = list_ids(stack)
    stack.spec["groups"]["l40s"]["count"] = 1
    # Only muster makes these calls: Pulumi's plugin repeats its own.
    account.fail("GetCallerIdentity", "RequestLimitExceeded")
    account.fail("GetParametersByPath", "ThrottlingException", times=2)
    output = stack.up()
    line = "AWS throttled or could not answer 3 calls of muster (2 ThrottlingException, 1 RequestLimitExceeded); "
    assert re.search(rf"^{re.escape(line)}retries took \d+\.\d s in all$", output, re.MULTILINE), output
    assert list_nodes(stack) == ["controller", "l40s-1", "login"]
    assert set(list_ids(stack)) < set(before)


# By day, test_pair.py and test_other_examples.py have a second `up`.
def test_second_up_changes_nothing(stack: CloudStack) -> None:
    before = list_resources(stack.cloud)
    stack.unchanged()
    assert list_resources(stack.cloud) == before


def test_teardown_keeps_existing_resources_and_names_denied_searches(
    stack: CloudStack, existing: set[str], account: Moto
) -> None:
    account.fail("DescribeFlowLogs", "UnauthorizedOperation", times=99)
    output = stack.muster("teardown", "--yes", check=False)
    account.faults.clear()
    assert "not searched: ec2 (flow log) because UnauthorizedOperation" in output
    assert "is left" not in output
    assert (stack.receipt["left"], stack.receipt["unseen"]) == (0, ["ec2 (flow log) because UnauthorizedOperation"])
    assert list_resources(stack.cloud) == existing


def test_the_next_teardown_with_full_access_succeeds(stack: CloudStack, existing: set[str]) -> None:
    assert "nothing of cluster guest is left" in stack.teardown()
    assert stack.receipt["unseen"] == []
    assert list_resources(stack.cloud) == existing


def list_running(stack: CloudStack) -> list[dict[str, object]]:
    states = [{"Name": "instance-state-name", "Values": ["running"]}]
    reservations = stack.cloud.client("ec2").describe_instances(Filters=states)["Reservations"]
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def list_ids(stack: CloudStack) -> list[object]:
    return [instance["InstanceId"] for instance in list_running(stack)]


def list_nodes(stack: CloudStack) -> list[str]:
    reported = stack.cloud.client("ssm").get_parameters_by_path(Path=f"/muster/{stack.spec['name']}/nodes")
    running_ids = set(list_ids(stack))
    instances = {
        parameter["Name"].rpartition("/")[2]: json.loads(parameter["Value"])["instance"]
        for parameter in reported["Parameters"]
    }
    return sorted(name for name, instance in instances.items() if instance in running_ids)
