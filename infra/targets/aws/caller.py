"""Whose credentials are in use, and whether they are of the account that a cluster is in."""

from __future__ import annotations

from infra.resources.problem import Problem
from infra.targets.aws.client import client
from infra.targets.aws.instances import asking


def check_account(cluster: str, account: str, region: str) -> None:
    """In another account everything of the cluster looks gone: nothing may be concluded from that."""
    with asking("the account", region):
        said = client("sts", region).get_caller_identity()
    if said["Account"] != account:
        what = (
            f"cluster {cluster} is in account {account}, but the credentials are of {said['Account']} ({said['Arn']})"
        )
        raise Problem("aws", what, f"credentials of account {account}, by AWS_PROFILE or `aws sso login`")
