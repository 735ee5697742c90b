"""Checks of ownership: the cluster is in this account, and no other stack has its name."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from cluster import names as tags
from cluster.spec.issue import Issue, error
from infra.targets.aws import names
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject

_NO_SUCH = "NoSuchEntity"


def check_same_account(identity: Identity, existing_account: str) -> Iterator[Issue]:
    """Report credentials of another account, where a refresh would forget the cluster and create a second one."""
    if existing_account and existing_account != identity.account:
        message = f"this stack's cluster is in account {existing_account}; the credentials are for {identity.account}"
        fix = f"use credentials of account {existing_account}; a second cluster needs another stack file"
        yield error("other_account", "aws", message, fix)


def check_name(subject: Subject) -> Iterator[Issue]:
    """Report a name whose role exists but was not created by this stack.

    Role names are global to the account: another stack, another user or a lost state has the cluster.
    """
    if subject.exists:
        return
    role, account = names.prefixed(subject.spec.name, tags.CONTROLLER), subject.identity.account
    try:
        subject.client("iam").get_role(RoleName=role)
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_SUCH:
            raise
        return
    message = f"'{subject.spec.name}' is taken: account {account} has role {role}, which this stack did not create"
    fix = "choose another name; or, if it is yours and its state is lost, run `make teardown` with FORCE=1 first"
    yield error("name_taken", "name", message, fix)
