"""Host keys of compute nodes: each machine gets that of its name, and nobody else's."""

from __future__ import annotations

import json

import pytest

from infra.targets.aws.build.nodes import Group
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.node import parameters
from slurm.power.launcher import LauncherError
from tests.moto_server import ACCOUNT, REGION, Moto
from tests.slurm.power.cluster import Clock, list_running

ARNS = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/"
BUCKET = "host-keys-of-demo"


@pytest.fixture
def keyed(aws: Moto, fleet: Fleet) -> Fleet:
    """Return the fleet of a cluster whose nodes have keys of their own."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    keys = {f"gpu-{number}": f"private of gpu-{number}" for number in range(1, 9)}
    s3.put_object(Bucket=BUCKET, Key=parameters.HOST_KEYS, Body=json.dumps(keys).encode())
    return fleet.model_copy(update={"bucket": BUCKET, "machine_arns": ARNS})


def read_keys(aws: Moto) -> dict[str, str]:
    """Return the keys that were handed over, by machine."""
    s3 = aws.client("s3")
    prefix = parameters.own_host_key(ARNS)
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {
        item["Key"].removeprefix(prefix): s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read().decode()
        for item in listed
    }


def test_a_launch_hands_each_machine_the_key_of_its_name(aws: Moto, keyed: Fleet) -> None:
    result = launch(AwsApi(REGION), keyed, keyed.group("gpu").options, [("gpu-2", "gpu-5")], "token")
    assert read_keys(aws) == {machine.id: f"private of {name}" for name, machine in result.machines.items()}
    assert sorted(result.machines) == ["gpu-2", "gpu-5"]


def test_a_node_without_a_key_is_named_and_its_machine_ended(aws: Moto, keyed: Fleet) -> None:
    with pytest.raises(LauncherError, match=r"host-keys\.json has no host key of gpu-9"):
        launch(AwsApi(REGION), keyed, keyed.group("gpu").options, [("gpu-9",)], "token")
    assert list_running(aws) == []
    assert read_keys(aws) == {}


def test_up_hands_keys_to_machines_that_an_older_version_launched(
    aws: Moto, fleet: Fleet, keyed: Fleet, clock: Clock
) -> None:
    old = launch(AwsApi(REGION), fleet, fleet.group("gpu").options, [("gpu-7",)], "token").machines["gpu-7"]
    assert read_keys(aws) == {}
    api = AwsApi(REGION, sleep=clock.sleep, clock=clock.now)
    Group(api, keyed, "gpu", 0, 8, sleep=clock.sleep, clock=clock.now).ensure()
    assert read_keys(aws) == {old.id: "private of gpu-7"}
