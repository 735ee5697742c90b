"""The g6 pair through its whole life: what a person sees, what AWS has, how often it was asked, what is left."""

from __future__ import annotations

import pytest

from infra.targets.aws import leftovers
from slurm.power.cloud import Cloud
from tests.aws_engine.cloud_stack import CALLS_AT_MOST, CloudStack
from tests.aws_engine.conftest import MakeStack
from tests.aws_engine.everything import everything
from tests.moto_server import REGION


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
    assert "ready: 1 nodes" in said
    assert {one.split()[0] for one in everything(pair.server) - empty} >= {"Instances", "Vpcs", "NatGateways", "efs"}


def test_up_again_changes_nothing(pair: CloudStack) -> None:
    before = everything(pair.server)
    with pair.counted("refresh"):
        pair.pulumi("up", "--yes", "--skip-preview", "--refresh", "--expect-no-changes")
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


def test_teardown_takes_what_slurm_launched_and_ends_with_a_receipt(pair: CloudStack, empty: set[str]) -> None:
    launched_by_slurm(pair)
    with pair.counted("teardown"):
        said = pair.teardown()
    assert "nothing of cluster pair is left" in said
    assert (pair.receipt["left"], pair.receipt["stays"], pair.receipt["usd_per_hour"]) == (0, 0, 0)
    kinds = [item["kind"] for item in pair.receipt["items"]]
    assert kinds.count("instance") == 2
    assert leftovers.find("pair", REGION) == []
    assert everything(pair.server) == empty


def test_api_calls_do_not_grow_unnoticed(pair: CloudStack) -> None:
    assert set(pair.calls) == set(CALLS_AT_MOST)
    assert {what: calls for what, calls in pair.calls.items() if calls > CALLS_AT_MOST[what]} == {}


def launched_by_slurm(stack: CloudStack) -> None:
    """A node as ResumeProgram starts it: in no state file."""
    ec2 = Cloud(REGION)
    template = ec2.call("ec2", "describe_launch_templates")["LaunchTemplates"][0]["LaunchTemplateId"]
    subnet = ec2.call("ec2", "describe_subnets", Filters=[{"Name": "tag:muster.cluster", "Values": ["pair"]}])
    tags = {"muster.cluster": "pair", "muster.stack": stack.name, "muster.role": "compute", "muster.group": "gpu"}
    ec2.call(
        "ec2",
        "run_instances",
        LaunchTemplate={"LaunchTemplateId": template},
        InstanceType="g6.8xlarge",
        SubnetId=subnet["Subnets"][0]["SubnetId"],
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in (tags | {"muster.node": "gpu-1"}).items()],
            }
        ],
    )
