"""The g6 pair through its whole life: what a person sees, what AWS has, how often it was asked, what is left."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from infra.inventory import Fleet, parameters
from infra.plan.aws import names
from infra.targets import Leftovers
from infra.targets.aws import leftovers
from slurm.power.cloud import Cloud
from slurm.power.launch import launch
from tests.aws_engine.cloud_stack import CALLS_AT_MOST, CloudStack
from tests.aws_engine.conftest import MakeStack
from tests.aws_engine.everything import everything
from tests.moto_server import ACCOUNT, REGION


@pytest.fixture(scope="module")
def pair(make: MakeStack) -> CloudStack:
    return make("aws-g6-pair")


@pytest.fixture(scope="module")
def empty(pair: CloudStack) -> set[str]:
    """The account before."""
    return everything(pair.server)


def test_up(pair: CloudStack, empty: set[str]) -> None:
    with pair.counted("up"):
        said = pair.up()
    assert "ready: controller, up to 2 autoscaled nodes in " in said
    assert {one.split()[0] for one in everything(pair.server) - empty} >= {"Instances", "Vpcs", "NatGateways", "efs"}


def test_up_again_changes_nothing(pair: CloudStack) -> None:
    before = everything(pair.server)
    with pair.counted("refresh"):
        pair.unchanged()
    assert everything(pair.server) == before


def test_more_nodes_and_a_safe_field_replace_nothing(pair: CloudStack) -> None:
    before = everything(pair.server)
    pair.spec["groups"]["gpu"]["max"] = 3
    pair.spec["tags"] = {"team": "x"}
    pair.spec["budget"] = {"usd_per_hour": 9}
    with pair.counted("change"):
        pair.up()
    assert everything(pair.server) == before
    told = pair.server.client("ec2").describe_vpcs(Filters=[{"Name": "tag:team", "Values": ["x"]}])["Vpcs"]
    assert len(told) == 1


def test_a_controller_that_is_gone_comes_back_with_its_address_and_its_state(pair: CloudStack) -> None:
    before, there = controller(pair), everything(pair.server)
    pair.server.client("ec2").terminate_instances(InstanceIds=[before.id])
    pair.up()
    after = controller(pair)
    assert after.id != before.id
    assert (after.address, after.interface, after.state) == (before.address, before.interface, before.state)
    assert {one.split()[0] for one in everything(pair.server) ^ there} == {"Instances", "Volumes"}


def test_teardown_takes_what_slurm_launched_and_ends_with_a_receipt(pair: CloudStack, empty: set[str]) -> None:
    launched_by_slurm(pair)
    with pair.counted("teardown"):
        said = pair.teardown()
    assert "nothing of cluster pair is left" in said
    assert (pair.receipt["left"], pair.receipt["stays"], pair.receipt["usd_per_hour"]) == (0, 0, 0)
    kinds = [item["kind"] for item in pair.receipt["items"]]
    assert kinds.count("instance") == 2
    assert leftovers.find("pair", REGION) == Leftovers([])
    assert everything(pair.server) == empty


def test_api_calls_do_not_grow_unnoticed(pair: CloudStack) -> None:
    assert set(pair.calls) == set(CALLS_AT_MOST)
    assert {what: calls for what, calls in pair.calls.items() if calls > CALLS_AT_MOST[what]} == {}


@dataclass(frozen=True)
class Controller:
    id: str
    address: str
    interface: str
    state: str
    """The volume with queue and accounts."""


def controller(stack: CloudStack) -> Controller:
    ec2 = stack.server.client("ec2")
    wanted = {"tag:muster.role": ["controller"], "instance-state-name": ["running"]}
    filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
    (machine,) = [one for r in ec2.describe_instances(Filters=filters)["Reservations"] for one in r["Instances"]]
    volumes = {one["DeviceName"]: one["Ebs"]["VolumeId"] for one in machine["BlockDeviceMappings"]}
    (interface,) = machine["NetworkInterfaces"]
    return Controller(
        machine["InstanceId"], machine["PrivateIpAddress"], interface["NetworkInterfaceId"], volumes["/dev/sdf"]
    )


def launched_by_slurm(stack: CloudStack) -> None:
    """A node as ResumeProgram starts it: in no state file."""
    bucket = names.bucket(stack.spec["name"], ACCOUNT, REGION)
    written = stack.server.client("s3").get_object(Bucket=bucket, Key=parameters.FLEET)["Body"].read()
    fleet = Fleet.model_validate_json(written)
    assert not launch(Cloud(REGION), fleet, fleet.groups[0].options, [("gpu-1",)], "token").missing
