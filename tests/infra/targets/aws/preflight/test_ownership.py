"""A cluster belongs to one account and one stack: another account ends everything, a name that is taken ends `up`."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT
from infra.home import Home
from infra.targets.aws.preflight import ownership
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.checks import PreflightOptions, run_preflight
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.test_command import muster, stacks
from tests.infra.targets.aws.preflight.words import words
from tests.infra.targets.aws.specs import spec
from tests.infra.targets.aws.test_state import PROVIDER, RESOLVED, keep
from tests.moto_server import ACCOUNT, Moto

__all__ = ["stacks"]

TRUST = '{"Version": "2012-10-17", "Statement": []}'
ME = Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann")


def subject(answered: Answered, *, made: bool) -> Subject:
    return Subject(spec(name="pair"), answered.account, ME, exists=made)


def take(aws: Moto, role: str) -> None:
    aws.client("iam").create_role(RoleName=role, AssumeRolePolicyDocument=TRUST)


def test_a_name_that_another_stack_has_is_refused(answered: Answered, aws: Moto) -> None:
    take(aws, "muster-pair-2-controller")
    assert words(ownership.check_name(subject(answered, made=False))) == []
    take(aws, "muster-pair-controller")
    assert words(ownership.check_name(subject(answered, made=False))) == [
        f"error name_taken name: 'pair' is taken: account {ACCOUNT} has role muster-pair-controller, which this stack "
        "did not create; fix: choose another name; or, if it is yours and its state is lost, run `make teardown` with "
        "FORCE=1 first"
    ]
    assert words(ownership.check_name(subject(answered, made=True))) == []


def test_in_another_account_nothing_else_is_asked(answered: Answered, aws: Moto) -> None:
    found = run_preflight(spec(), answered.account, PreflightOptions(existing_account="111122223333"))
    assert words(found.issues) == [
        f"error other_account aws: this stack's cluster is in account 111122223333; the credentials are for {ACCOUNT}; "
        "fix: use credentials of account 111122223333; a second cluster needs another stack file"
    ]
    assert set(aws.count()) == {"GetCallerIdentity"}


@pytest.mark.parametrize("made_in", [None, "", ACCOUNT])
def test_the_same_account_is_fine(answered: Answered, made_in: str | None) -> None:
    assert run_preflight(spec(), answered.account, PreflightOptions(checks=(), existing_account=made_in)).issues == ()


@pytest.mark.parametrize("options", [[], ["--no-preflight"]])
def test_up_starts_nothing_in_another_account(stacks: Path, aws: Moto, options: list[str]) -> None:
    keep(Home.of({"MUSTER_HOME": str(stacks / "home")}).stack("pair"), PROVIDER, RESOLVED)
    done = muster(stacks, "up", "--stack", "pair", *options, **aws.environment())
    assert done.returncode == BAD_INPUT
    assert f"account 111122223333; the credentials are for {ACCOUNT}" in done.stderr
