"""The g6 pair through its whole life: what a person sees, what AWS has, how often it was asked, what is left.

On moto with the plugin of these tests; with `make test-aws` the same in a real account with the real plugin."""

from __future__ import annotations

from base64 import b64decode

import pytest

from infra.engine.environment import BUDGET_JUDGED
from infra.targets.aws import names
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.leftovers import search
from infra.targets.aws.node import parameters
from infra.targets.target import Leftovers
from tests.infra.targets.aws.with_engine.cloud_stack import CALLS_AT_MOST, SECONDS_AT_MOST, CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.infra.targets.aws.with_engine.controller import controller, end
from tests.infra.targets.aws.with_engine.everything import everything
from tests.infra.targets.aws.with_engine.needs import CLUSTER, STACK


@pytest.fixture(scope="module")
def pair(make: MakeStack) -> CloudStack:
    return make(STACK, name=CLUSTER)


@pytest.fixture(scope="module")
def empty(pair: CloudStack) -> set[str]:
    """The account before."""
    return everything(pair.cloud)


def test_preview_makes_nothing(pair: CloudStack, empty: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the program judge a budget again that was judged by today's prices."""
    budget = pair.spec["budget"]
    monkeypatch.setenv(BUDGET_JUDGED, "1")
    pair.spec["budget"] = {"usd_per_hour": 0.01}
    said = pair.preview()
    pair.spec["budget"] = budget
    assert "aws:ec2:Instance" in said
    assert everything(pair.cloud) == empty


def test_up(pair: CloudStack, empty: set[str]) -> None:
    with pair.counted("up"):
        said = pair.up()
    assert "ready: controller, up to 2 autoscaled nodes in " in said
    assert {one.split()[0] for one in everything(pair.cloud) - empty} >= {"Instances", "Vpcs", "NatGateways", "efs"}


def test_up_again_changes_nothing(pair: CloudStack) -> None:
    before = everything(pair.cloud)
    with pair.counted("refresh"):
        pair.unchanged()
    assert everything(pair.cloud) == before


def test_secrets_are_in_clear_in_parameter_store_alone(pair: CloudStack) -> None:
    """Neither in the state nor in what machines are started with, the engine's own and those of the template."""
    ssm, ec2 = pair.cloud.client("ssm"), pair.cloud.client("ec2")
    pages = ssm.get_paginator("get_parameters_by_path").paginate(
        Path=f"/muster/{CLUSTER}", Recursive=True, WithDecryption=True
    )
    found = [one for page in pages for one in page["Parameters"] if one["Type"] == "SecureString"]
    assert len(found) == 5, "Slurm's key, the database's password, host keys of three roles"
    # A key in PEM has the same first and last line as every other.
    secrets = {one["Name"]: max(one["Value"].splitlines(), key=len) for one in found}
    mine = [{"Name": "tag:muster.cluster", "Values": [CLUSTER]}]
    machine = ec2.describe_instances(Filters=mine)["Reservations"][0]["Instances"][0]["InstanceId"]
    started = ec2.describe_instance_attribute(InstanceId=machine, Attribute="userData")["UserData"]["Value"]
    template = ec2.describe_launch_templates(Filters=mine)["LaunchTemplates"][0]["LaunchTemplateId"]
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=template, Versions=["$Latest"])[
        "LaunchTemplateVersions"
    ]
    texts = [b64decode(one).decode() for one in (started, version["LaunchTemplateData"]["UserData"])]
    assert all("muster: fetches the bundle" in text for text in texts)
    seen = "\n".join([pair.pulumi("stack", "export"), *texts])
    assert [name for name, secret in secrets.items() if secret in seen] == []


def test_more_nodes_and_a_safe_field_replace_nothing(pair: CloudStack) -> None:
    before = everything(pair.cloud)
    pair.spec["groups"]["gpu"]["max"] = 3
    pair.spec["tags"] = {"team": "x"}
    pair.spec["budget"] = {"usd_per_hour": 9}
    with pair.counted("change"):
        pair.up()
    assert everything(pair.cloud) == before
    mine = [{"Name": "tag:team", "Values": ["x"]}, {"Name": "tag:muster.cluster", "Values": [CLUSTER]}]
    assert len(pair.cloud.client("ec2").describe_vpcs(Filters=mine)["Vpcs"]) == 1


def test_a_controller_that_is_gone_comes_back_with_its_address_and_its_state(pair: CloudStack) -> None:
    before, there = controller(pair), everything(pair.cloud)
    end(pair, before)
    pair.up()
    after = controller(pair)
    assert after.id != before.id
    assert (after.address, after.interface, after.state) == (before.address, before.interface, before.state)
    assert {one.split()[0] for one in everything(pair.cloud) ^ there} == {"Instances", "Volumes"}


def test_a_node_that_slurm_launches(pair: CloudStack) -> None:
    """As ResumeProgram starts it: in no state file, and gone with the cluster below."""
    bucket = names.bucket(CLUSTER, pair.cloud.account, pair.cloud.region)
    written = pair.cloud.client("s3").get_object(Bucket=bucket, Key=parameters.FLEET)["Body"].read()
    fleet = Fleet.model_validate_json(written)
    assert not launch(AwsApi(pair.cloud.region), fleet, fleet.groups[0].options, [("gpu-1",)], "token").missing
    assert len(machines(pair)) == 2


def test_teardown_ends_with_a_receipt(pair: CloudStack, empty: set[str]) -> None:
    there = machines(pair)
    with pair.counted("teardown"):
        said = pair.teardown()
    assert f"nothing of cluster {CLUSTER} is left" in said
    receipt = pair.receipt
    assert (receipt["left"], receipt["stays"], receipt["usd_per_hour"], receipt["unseen"]) == (0, 0, 0, [])
    assert {item["name"] for item in receipt["items"] if item["kind"] == "instance"} == there
    assert search.find_leftovers(CLUSTER, pair.cloud.region) == Leftovers([])
    assert everything(pair.cloud) - empty == set()


def test_api_calls_do_not_grow_unnoticed(pair: CloudStack) -> None:
    assert set(pair.calls) == set(CALLS_AT_MOST)
    assert {what: calls for what, calls in pair.calls.items() if calls > CALLS_AT_MOST[what]} == {}


def test_engine_time_does_not_grow_unnoticed(pair: CloudStack) -> None:
    assert set(pair.seconds) == set(SECONDS_AT_MOST)
    assert {what: took for what, took in pair.seconds.items() if took > SECONDS_AT_MOST[what]} == {}


def machines(stack: CloudStack) -> set[str]:
    mine = [
        {"Name": "tag:muster.cluster", "Values": [stack.spec["name"]]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    found = stack.cloud.client("ec2").describe_instances(Filters=mine)["Reservations"]
    return {one["InstanceId"] for reservation in found for one in reservation["Instances"]}
