"""A cluster belongs to one account and one stack; credentials of another account and taken names are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT
from infra.home import Home
from infra.targets.aws.preflight import ownership
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.checks import PreflightOptions, run_preflight
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.preflight.test_command import muster, stacks
from tests.infra.targets.aws.specs import spec
from tests.infra.targets.aws.test_state import PROVIDER, RESOLVED, write_state
from tests.moto_server import ACCOUNT, Moto

__all__ = ["stacks"]

TRUST = '{"Version": "2012-10-17", "Statement": []}'
ME = Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann")


def subject(canned_aws: CannedAws, *, exists: bool) -> Subject:
    return Subject(spec(name="pair"), canned_aws.account, ME, exists=exists)


def create_role(aws: Moto, role: str) -> None:
    aws.client("iam").create_role(RoleName=role, AssumeRolePolicyDocument=TRUST)


def test_a_name_taken_by_another_stack_is_an_error(canned_aws: CannedAws, aws: Moto) -> None:
    create_role(aws, "muster-pair-2-controller")
    assert format_issues(ownership.check_name(subject(canned_aws, exists=False))) == []
    create_role(aws, "muster-pair-controller")
    assert format_issues(ownership.check_name(subject(canned_aws, exists=False))) == [
        f"error name_taken name: 'pair' is taken: account {ACCOUNT} has role muster-pair-controller, which this stack "
        "did not create; fix: choose another name; or, if it is yours and its state is lost, run `make teardown` with "
        "FORCE=1 first"
    ]
    assert format_issues(ownership.check_name(subject(canned_aws, exists=True))) == []


def test_in_another_account_no_other_call_is_made(canned_aws: CannedAws, aws: Moto) -> None:
    report = run_preflight(spec(), canned_aws.account, PreflightOptions(existing_account="111122223333"))
    assert format_issues(report.issues) == [
        f"error other_account aws: this stack's cluster is in account 111122223333; the credentials are for {ACCOUNT}; "
        "fix: use credentials of account 111122223333; a second cluster needs another stack file"
    ]
    assert set(aws.count()) == {"GetCallerIdentity"}


@pytest.mark.parametrize("existing_account", [None, "", ACCOUNT])
def test_the_same_account_is_fine(canned_aws: CannedAws, existing_account: str | None) -> None:
    assert (
        run_preflight(spec(), canned_aws.account, PreflightOptions(checks=(), existing_account=existing_account)).issues
        == ()
    )


@pytest.mark.parametrize("options", [[], ["--no-preflight"]])
def test_up_starts_nothing_in_another_account(stacks: Path, aws: Moto, options: list[str]) -> None:
    write_state(Home.of({"MUSTER_HOME": str(stacks / "home")}).stack("pair"), PROVIDER, RESOLVED)
    done = muster(stacks, "up", "--stack", "pair", *options, **aws.environment())
    assert done.returncode == BAD_INPUT
    assert f"account 111122223333; the credentials are for {ACCOUNT}" in done.stderr
