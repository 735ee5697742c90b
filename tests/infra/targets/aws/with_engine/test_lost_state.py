"""Teardown of a cluster whose Pulumi state is lost: everything is removed by tag, except kept storage and its key."""

from __future__ import annotations

import shutil

import pytest

from infra.targets.aws.rehearse.account_resources import list_resources
from tests.infra.targets.aws.with_engine.conftest import MakeStack

# Of a sweep that had to wait for something in use.
WAITED_S = 60.0


@pytest.mark.nightly
def test_teardown_without_state_keeps_only_the_filesystem(make_stack: MakeStack) -> None:
    stack = make_stack("aws-g6-pair", storage={"shared": {"kind": "efs", "keep": True}})
    before = list_resources(stack.cloud)
    stack.up()
    shutil.rmtree(stack.home / "state")
    output = stack.muster("teardown", "--yes", "--force")
    assert "no Pulumi state: removed by label" in output
    assert "only kept resources of cluster pair are left" in output
    left = {resource.rpartition(" ")[0] for resource in list_resources(stack.cloud) - before}
    # The alias is part of its key.
    assert left == {"Keys", "kms Aliases", "efs FileSystems"}
    receipt = stack.receipt
    assert {item["kind"]: item["kept"] for item in receipt["items"] if not item["removed"]} == {
        "EFS filesystem": "keep: true",
        "encryption key": "needed by it",
    }
    removed = [item["kind"] for item in receipt["items"] if item["removed"]]
    assert {"EFS mount target", "security group", "subnet", "VPC"} <= set(removed)
    assert receipt["left"] == 0
    assert receipt["seconds"] < WAITED_S
