"""The check that the credentials belong to the account in which a cluster was created."""

from __future__ import annotations

from infra.resources.error import ResourceError
from infra.targets.aws.client import create_client
from infra.targets.aws.instances import translate_errors


def check_account(cluster: str, account: str, region: str) -> None:
    """Raise ResourceError for credentials of another account, where every resource of the cluster would seem gone."""
    with translate_errors("the account", region):
        identity = create_client("sts", region).get_caller_identity()
    if identity["Account"] != account:
        caller = f"{identity['Account']} ({identity['Arn']})"
        message = f"cluster {cluster} is in account {account}, but the credentials are for account {caller}"
        raise ResourceError("aws", message, f"use credentials of account {account}, by AWS_PROFILE or `aws sso login`")
