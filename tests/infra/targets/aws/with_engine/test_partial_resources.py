"""Resources that are created in part stay in Pulumi's state: the next `up` completes them, `teardown` removes them."""

from __future__ import annotations

import pytest

from infra.targets.aws.rehearse.account_resources import list_resources
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.moto_server import Moto

COMPLETES = ("AddRoleToInstanceProfile", "RevokeSecurityGroupEgress")
"""Calls that complete an instance profile and a security group."""


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_next_up_completes_what_was_created_in_part(
    make_stack: MakeStack, account: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = make_stack("aws-g6-pair", name="partial")
    before = list_resources(stack.cloud)
    # Both errors are met in one run.
    monkeypatch.setenv("PULUMI_CONTINUE_ON_ERROR", "true")
    for action in COMPLETES:
        account.fail(action, "AccessDenied")
    code, output = stack.attempt("up", "--no-preflight")
    assert code
    for action in COMPLETES:
        assert f"(AccessDenied) when calling the {action} operation" in output
    stack.up("--no-preflight")
    profiles = account.client("iam").list_instance_profiles()["InstanceProfiles"]
    assert len(account.of("CreateInstanceProfile")) == len(profiles)
    assert [profile["InstanceProfileName"] for profile in profiles if not profile["Roles"]] == []
    stack.unchanged()

    stack.teardown()
    account.fail("AddRoleToInstanceProfile", "AccessDenied")
    assert stack.attempt("up", "--no-preflight")[0]
    stack.teardown()
    assert stack.receipt["left"] == 0
    assert list_resources(stack.cloud) - before == set()
