"""Whose the cluster is: made in this account, and no other stack's under the same name."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from cluster import names as tags
from cluster.spec.issue import Issue, error
from infra.targets.aws import names
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import Subject

_NO_SUCH = "NoSuchEntity"


def same_account(identity: Identity, made_in: str) -> Iterator[Issue]:
    """A refresh in another account finds nothing, forgets the cluster that runs and makes a second one."""
    if made_in and made_in != identity.account:
        message = f"this stack's cluster is in account {made_in}; the credentials are of {identity.account}"
        fix = f"credentials of account {made_in}; a second cluster needs another stack file"
        yield error("other_account", "aws", message, fix)


def name_is_free(subject: Subject) -> Iterator[Issue]:
    """Names of roles are the account's, whatever the region: where there is one of a cluster that this stack has not
    made, another stack, another person or a lost state has it."""
    if subject.made:
        return
    role, account = names.prefixed(subject.spec.name, tags.CONTROLLER), subject.identity.account
    try:
        subject.client("iam").get_role(RoleName=role)
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _NO_SUCH:
            raise
        return
    message = f"'{subject.spec.name}' is taken: account {account} has role {role}, which this stack did not make"
    fix = "another name; or, if it is an old one of yours whose state is lost, `make teardown` with FORCE=1 first"
    yield error("name_taken", "name", message, fix)
