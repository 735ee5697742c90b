"""The whole life of the g6 pair: output of the commands, resources in AWS, number of API calls, leftovers.

It runs on moto with the test plugin, and with `make test-aws` in a real account with the real plugin.
"""

from __future__ import annotations

import json
from base64 import b64decode

import pytest

from infra.engine.environment import BUDGET_CHECKED
from infra.targets.aws import names
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.leftovers import search
from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.rehearse.account_resources import list_resources
from infra.targets.target import Leftovers
from slurm.config.auth_key import KEY_BYTES
from tests.infra.targets.aws.with_engine.cloud_stack import CALLS_AT_MOST, SECONDS_AT_MOST, CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.infra.targets.aws.with_engine.controller import find_controller, terminate
from tests.infra.targets.aws.with_engine.requirements import CLUSTER, STACK


@pytest.fixture(scope="module")
def pair(make_stack: MakeStack) -> CloudStack:
    return make_stack(STACK, name=CLUSTER)


@pytest.fixture(scope="module")
def before_up(pair: CloudStack) -> set[str]:
    """Return the resources of the account before `up`."""
    return list_resources(pair.cloud)


def test_preview_creates_nothing(pair: CloudStack, before_up: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that was already checked at live prices is not checked again by the program."""
    budget = pair.spec["budget"]
    monkeypatch.setenv(BUDGET_CHECKED, "1")
    pair.spec["budget"] = {"usd_per_hour": 0.01}
    output = pair.preview()
    pair.spec["budget"] = budget
    assert "aws:ec2:Instance" in output
    assert list_resources(pair.cloud) == before_up


def test_up(pair: CloudStack, before_up: set[str]) -> None:
    with pair.counted("up"):
        output = pair.up()
    assert "ready: controller, up to 2 autoscaled nodes in " in output
    assert {resource.split()[0] for resource in list_resources(pair.cloud) - before_up} >= {
        "Instances",
        "Vpcs",
        "NatGateways",
        "efs",
    }


def test_second_up_changes_nothing(pair: CloudStack) -> None:
    before = list_resources(pair.cloud)
    with pair.counted("refresh"):
        pair.unchanged()
    assert list_resources(pair.cloud) == before


def test_secrets_are_readable_only_in_parameter_store_and_bucket(pair: CloudStack) -> None:
    """They are neither in the state nor in the user data of instances and launch templates."""
    ssm, ec2 = pair.cloud.client("ssm"), pair.cloud.client("ec2")
    pages = ssm.get_paginator("get_parameters_by_path").paginate(
        Path=f"/muster/{CLUSTER}", Recursive=True, WithDecryption=True
    )
    parameters_of_cluster = [parameter for page in pages for parameter in page["Parameters"]]
    secure_parameters = [parameter for parameter in parameters_of_cluster if parameter["Type"] == "SecureString"]
    assert len(secure_parameters) == 4, "Slurm's key, the database's password, host keys of controller and login"
    # All PEM keys have the same first and last line, so compare the longest one.
    secrets = {parameter["Name"]: max(parameter["Value"].splitlines(), key=len) for parameter in secure_parameters}
    bucket = names.bucket(CLUSTER, pair.cloud.account, pair.cloud.region)
    host_keys = pair.cloud.client("s3").get_object(Bucket=bucket, Key=parameters.HOST_KEYS)["Body"].read()
    of_nodes = json.loads(host_keys)
    assert sorted(of_nodes) == ["gpu-1", "gpu-2"]
    secrets |= {node: max(key.splitlines(), key=len) for node, key in of_nodes.items()}
    of_cluster = [{"Name": "tag:muster.cluster", "Values": [CLUSTER]}]
    machine = ec2.describe_instances(Filters=of_cluster)["Reservations"][0]["Instances"][0]["InstanceId"]
    user_data = ec2.describe_instance_attribute(InstanceId=machine, Attribute="userData")["UserData"]["Value"]
    template = ec2.describe_launch_templates(Filters=of_cluster)["LaunchTemplates"][0]["LaunchTemplateId"]
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=template, Versions=["$Latest"])[
        "LaunchTemplateVersions"
    ]
    texts = [b64decode(data).decode() for data in (user_data, version["LaunchTemplateData"]["UserData"])]
    assert all("muster: fetches the bundle" in text for text in texts)
    seen = "\n".join([pair.pulumi("stack", "export"), *texts])
    assert [name for name, secret in secrets.items() if secret in seen] == []


def test_a_larger_group_and_new_tags_replace_nothing(pair: CloudStack) -> None:
    before = list_resources(pair.cloud)
    pair.spec["groups"]["gpu"]["max"] = 3
    pair.spec["tags"] = {"team": "x"}
    pair.spec["budget"] = {"usd_per_hour": 9}
    with pair.counted("change"):
        pair.up()
    assert list_resources(pair.cloud) == before
    of_cluster = [{"Name": "tag:team", "Values": ["x"]}, {"Name": "tag:muster.cluster", "Values": [CLUSTER]}]
    assert len(pair.cloud.client("ec2").describe_vpcs(Filters=of_cluster)["Vpcs"]) == 1


@pytest.mark.nightly
@pytest.mark.fault(24)
def test_a_lost_controller_is_replaced_with_its_address_and_state(pair: CloudStack) -> None:
    before, resources = find_controller(pair), list_resources(pair.cloud)
    terminate(pair, before)
    pair.up()
    after = find_controller(pair)
    assert after.id != before.id
    assert (after.address, after.interface, after.state) == (before.address, before.interface, before.state)
    assert {resource.split()[0] for resource in list_resources(pair.cloud) ^ resources} == {"Instances", "Volumes"}


@pytest.mark.nightly
def test_a_rotation_replaces_the_slurm_key_in_its_parameter(pair: CloudStack) -> None:
    """The machines that run read it again, as their new bundle tells."""
    before, resources = (read_slurm_key(pair), read_bundle(pair)), list_resources(pair.cloud)
    output = pair.muster("rotate keys")
    assert "step 3 of 3: no node accepts the old key any more" in output
    after = (read_slurm_key(pair), read_bundle(pair))
    assert [new for new, old in zip(after, before, strict=True) if new == old] == []
    assert len(b64decode(after[0])) == KEY_BYTES, "a single key, not a set"
    assert list_resources(pair.cloud) == resources
    pair.unchanged()


def test_slurm_launches_a_node(pair: CloudStack) -> None:
    """ResumeProgram launches it outside the engine's state; the teardown below removes it."""
    bucket = names.bucket(CLUSTER, pair.cloud.account, pair.cloud.region)
    written = pair.cloud.client("s3").get_object(Bucket=bucket, Key=parameters.FLEET)["Body"].read()
    fleet = Fleet.model_validate_json(written)
    launched = launch(AwsApi(pair.cloud.region), fleet, fleet.groups[0].options, [("gpu-1",)], "token")
    assert not launched.missing
    assert len(list_instances(pair)) == 2
    handed_over = pair.cloud.client("s3").list_objects_v2(Bucket=bucket, Prefix=parameters.own_host_key(""))["Contents"]
    assert launched.machines["gpu-1"].id in {item["Key"].rpartition("/")[2] for item in handed_over}


def test_teardown_removes_everything_and_writes_a_receipt(pair: CloudStack, before_up: set[str]) -> None:
    instances = list_instances(pair)
    with pair.counted("teardown"):
        output = pair.teardown()
    assert f"nothing of cluster {CLUSTER} is left" in output
    receipt = pair.receipt
    assert (receipt["left"], receipt["stays"], receipt["usd_per_hour"], receipt["unseen"]) == (0, 0, 0, [])
    assert {item["name"] for item in receipt["items"] if item["kind"] == "instance"} == instances
    assert search.find_leftovers(CLUSTER, pair.cloud.region) == Leftovers([])
    assert list_resources(pair.cloud) - before_up == set()


def test_number_of_api_calls_is_within_its_limit(pair: CloudStack) -> None:
    assert set(pair.calls) == set(CALLS_AT_MOST)
    assert {what: calls for what, calls in pair.calls.items() if calls > CALLS_AT_MOST[what]} == {}


def test_engine_time_is_within_its_limit(pair: CloudStack) -> None:
    assert set(pair.seconds) == set(SECONDS_AT_MOST)
    assert {what: took for what, took in pair.seconds.items() if took > SECONDS_AT_MOST[what]} == {}


def read_slurm_key(stack: CloudStack) -> str:
    name = parameters.slurm_key(CLUSTER)
    return str(stack.cloud.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"])


def read_bundle(stack: CloudStack) -> str:
    """Return the bundle that the controller has applied."""
    parameter = stack.cloud.client("ssm").get_parameter(Name=parameters.node(CLUSTER, "controller"))["Parameter"]
    return Report.model_validate_json(parameter["Value"]).bundle


def list_instances(stack: CloudStack) -> set[str]:
    of_cluster = [
        {"Name": "tag:muster.cluster", "Values": [stack.spec["name"]]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    reservations = stack.cloud.client("ec2").describe_instances(Filters=of_cluster)["Reservations"]
    return {instance["InstanceId"] for reservation in reservations for instance in reservation["Instances"]}
