"""Storage with `keep: true`: teardown names it with what it costs and what it needs, and the next `up` has it again."""

from __future__ import annotations

import re

import pytest

from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.infra.targets.aws.with_engine.everything import everything


@pytest.fixture(scope="module")
def h200(make: MakeStack) -> CloudStack:
    return make("aws-p5en-lustre")


@pytest.fixture(scope="module")
def empty(h200: CloudStack) -> set[str]:
    """The account before."""
    return everything(h200.cloud)


def test_up_and_up_again(h200: CloudStack, empty: set[str]) -> None:
    assert "ready: controller, login, 2 static nodes in " in h200.up()
    before = everything(h200.cloud)
    h200.unchanged()
    assert everything(h200.cloud) == before > empty


def test_teardown_keeps_storage_and_says_so(h200: CloudStack, empty: set[str]) -> None:
    said = h200.teardown()
    left = sorted({one.rpartition(" ")[0] for one in everything(h200.cloud) - empty})
    assert "only resources to keep are left of cluster h200" in said
    assert left == [
        "Keys",
        "RouteTables",
        "SecurityGroups",
        "Subnets",
        "Vpcs",
        "efs FileSystems",
        "fsx FileSystems",
    ]
    stays = {item["kind"]: item["kept"] for item in h200.receipt["items"] if not item["removed"]}
    assert stays == {
        "FSx for Lustre filesystem": "keep: true",
        "EFS filesystem": "keep: true",
        "encryption key": "needed by it",
        "VPC": "needed by it",
        "subnet": "needed by it",
        "security group": "needed by it",
    }
    assert h200.receipt["usd_per_hour"] == pytest.approx((4800 * 0.21 + 1) / 730, rel=0.01)
    assert "remaining cost" in said


def test_the_next_up_goes_on_with_the_same_storage(h200: CloudStack) -> None:
    said = h200.preview()
    assert re.search(r"\+ +aws:ec2:Instance +controller", said)
    assert not re.search(r"aws:(fsx|efs):\w*FileSystem .*(create|replace|delete)", said)


def test_storage_that_a_person_deleted_takes_the_rest_with_it(h200: CloudStack, empty: set[str]) -> None:
    for service in ("fsx", "efs"):
        client = h200.cloud.client(service)
        for one in client.describe_file_systems()["FileSystems"]:
            client.delete_file_system(FileSystemId=one["FileSystemId"])
    assert "nothing of cluster h200 is left" in h200.teardown()
    assert everything(h200.cloud) == empty
