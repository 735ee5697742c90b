"""Policies and programs of the spec must exist before machines are created for them."""

from __future__ import annotations

import json

from infra.targets.aws.preflight import policies_and_hooks
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec
from tests.moto_server import ACCOUNT, REGION, Moto

ME = Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:user/ann")
OWN, OTHER = (f"arn:aws:iam::{ACCOUNT}:policy/{name}" for name in ("own", "other"))


def test_missing_policies_are_errors(canned_aws: CannedAws, aws: Moto) -> None:
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
    aws.client("iam").create_policy(PolicyName="own", PolicyDocument=json.dumps(allowed))
    described = spec(aws={"region": REGION, "policies": {"jobs": [OWN, OTHER], "compute": [OWN]}})
    assert format_issues(policies_and_hooks.check_policies(Subject(described, canned_aws.account, ME))) == [
        f"error policy_missing aws.policies.jobs[1]: '{OTHER}' does not exist: it could not be attached to a role; "
        "fix: write the ARN of a policy that exists"
    ]


def test_missing_programs_are_errors(canned_aws: CannedAws, aws: Moto) -> None:
    aws.client("s3").create_bucket(Bucket="tools")
    aws.client("s3").put_object(Bucket="tools", Key="x/agent.sh", Body=b"#!/bin/sh\n")
    scripts = {"a": "s3://tools/x/agent.sh", "b": "s3://tools/agent.sh", "c": "s3://no-such-tools/agent.sh"}
    hooks = {name: {"script": script, "sha256": "0" * 64} for name, script in scripts.items()}
    described = spec(aws={"region": REGION, "hooks": hooks})
    assert format_issues(policies_and_hooks.check_hooks(Subject(described, canned_aws.account, ME))) == [
        f"error hook_missing aws.hooks.{name}.script: '{scripts[name]}' does not exist: machines could not be set up; "
        "fix: upload it, or write where it is"
        for name in ("b", "c")
    ]


def test_a_spec_without_them_needs_no_call(canned_aws: CannedAws, aws: Moto) -> None:
    aws.calls.clear()
    subject = Subject(spec(), canned_aws.account, ME)
    assert [*policies_and_hooks.check_policies(subject), *policies_and_hooks.check_hooks(subject)] == []
    assert aws.calls == []
