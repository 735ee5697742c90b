"""Storage with `keep: true`: teardown keeps it and reports cost and dependencies; the next `up` uses it again."""

from __future__ import annotations

import re

import pytest

from infra.targets.aws.rehearse.account_resources import list_resources
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def h200(make_stack: MakeStack) -> CloudStack:
    return make_stack("aws-p5en-lustre")


@pytest.fixture(scope="module")
def before_up(h200: CloudStack) -> set[str]:
    """Return the resources of the account before `up`."""
    return list_resources(h200.cloud)


def test_up(h200: CloudStack, before_up: set[str]) -> None:
    assert "ready: controller, login, 2 static nodes in " in h200.up()
    assert list_resources(h200.cloud) > before_up


# By day, test_other_examples.py has a second `up` with storage of both kinds.
def test_second_up_changes_nothing(h200: CloudStack) -> None:
    before = list_resources(h200.cloud)
    h200.unchanged()
    assert list_resources(h200.cloud) == before


def test_teardown_reports_the_kept_storage(h200: CloudStack, before_up: set[str]) -> None:
    output = h200.teardown()
    left = sorted({resource.rpartition(" ")[0] for resource in list_resources(h200.cloud) - before_up})
    assert "only kept resources of cluster h200 are left" in output
    assert left == [
        "Keys",
        "RouteTables",
        "SecurityGroups",
        "Subnets",
        "Vpcs",
        "efs FileSystems",
        "fsx FileSystems",
    ]
    kept_items = {item["kind"]: item["kept"] for item in h200.receipt["items"] if not item["removed"]}
    assert kept_items == {
        "FSx for Lustre filesystem": "keep: true",
        "EFS filesystem": "keep: true",
        "encryption key": "needed by it",
        "VPC": "needed by it",
        "subnet": "needed by it",
        "security group": "needed by it",
    }
    assert h200.receipt["usd_per_hour"] == pytest.approx((4800 * 0.21 + 1) / 730, rel=0.01)
    assert "remaining cost" in output


def test_the_next_up_uses_the_same_storage(h200: CloudStack) -> None:
    output = h200.preview()
    assert re.search(r"\+ +aws:ec2:Instance +controller", output)
    assert not re.search(r"aws:(fsx|efs):\w*FileSystem .*(create|replace|delete)", output)


def test_after_storage_is_deleted_by_hand_teardown_removes_everything(h200: CloudStack, before_up: set[str]) -> None:
    for service in ("fsx", "efs"):
        client = h200.cloud.client(service)
        for filesystem in client.describe_file_systems()["FileSystems"]:
            client.delete_file_system(FileSystemId=filesystem["FileSystemId"])
    assert "nothing of cluster h200 is left" in h200.teardown()
    assert list_resources(h200.cloud) == before_up
