"""Checks of what the spec adds to machines: its policies and programs exist."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from cluster.spec.issue import Issue, error
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import RolePolicies, aws_section

_MISSING = ("NoSuchEntity", "404", "NoSuchKey", "NoSuchBucket")


def check_policies(subject: Subject) -> Iterator[Issue]:
    """Report policies that do not exist, which could not be attached to a role."""
    section = aws_section(subject.spec)
    policies = section.policies if section else RolePolicies()
    for role in RolePolicies.model_fields:
        for index, arn in enumerate(getattr(policies, role)):
            try:
                subject.client("iam").get_policy(PolicyArn=arn)
            except ClientError as failure:
                if failure.response["Error"]["Code"] not in _MISSING:
                    raise
                message = f"'{arn}' does not exist: it could not be attached to a role"
                where = f"aws.policies.{role}[{index}]"
                yield error("policy_missing", where, message, "write the ARN of a policy that exists")


def check_hooks(subject: Subject) -> Iterator[Issue]:
    """Report programs that do not exist: the set-up of every machine would fail."""
    section = aws_section(subject.spec)
    hooks = section.hooks if section else {}
    for name, hook in hooks.items():
        bucket, _, key = hook.script.removeprefix("s3://").partition("/")
        try:
            subject.client("s3").head_object(Bucket=bucket, Key=key)
        except ClientError as failure:
            if failure.response["Error"]["Code"] not in _MISSING:
                raise
            message = f"'{hook.script}' does not exist: machines could not be set up"
            yield error("hook_missing", f"aws.hooks.{name}.script", message, "upload it, or write where it is")
