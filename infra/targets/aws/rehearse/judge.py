"""The judge of calls: who may do what in the simulated account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from infra.targets.aws.rehearse.authorizations import Account, Session, list_authorizations
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.moto_server import Judge
from infra.targets.aws.rehearse.policies import Statement
from infra.targets.aws.rehearse.policy_evaluation import Caller, Policies, explain_denial

# The end of the reason if a machine has outlived its role.
MISSING = " does not exist"
_UNJUDGED = "cannot judge"
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-requestedregion
_GLOBAL_SERVICES = ("budgets", "iam", "route53")
_GLOBAL_REGION = "us-east-1"


class JudgedAccount(Account, Protocol):
    """An account with the policies of its roles, buckets and keys."""

    def describe_source(self, service: str, vpc: str, /) -> Mapping[str, str]:
        """Return the condition keys that a request from a VPC gets from the network on its way to a service."""

    def list_statements(self, role: str, /) -> list[Statement] | None:
        """Return the statements of all policies of a role; None if the role does not exist."""

    def list_boundary(self, role: str, /) -> list[Statement] | None:
        """Return the statements of a role's permissions boundary; None if it has none."""

    def list_resource_statements(self, arn: str, /) -> list[Statement]:
        """Return the statements of the policy of a bucket, for its objects too, or of a key."""

    def trusts(self, role_arn: str, caller: str, /) -> bool:
        """Return whether the trust policy of a role lets machines with another role assume it."""

    def find_session(self, access_key: str, /) -> Session | None:
        """Return the session of an assumed role that has these credentials."""


def make_judge(account: JudgedAccount, instances: Instances, operator_key: str, denials: list[str]) -> Judge:
    """Return the judge of calls: muster's own commands may do anything, machines what their role permits.

    Programs of users may do what the role of jobs permits. Everyone else is denied. Denials of machines, and calls that
    cannot be judged, are added to `denials`; those of users' programs are not, because users may try what they like.
    """

    def judge(caller: str, service: str, action: str, params: dict[str, str]) -> str:
        if caller == operator_key:
            return ""
        instance, session = instances.find_caller(caller), account.find_session(caller)
        if instance is None and session:
            reason = _judge_session(account, instances, session, service, action, params)
            denials.extend([reason] if reason.startswith(_UNJUDGED) else [])
            return reason
        if instance is None:
            return f"the credentials {caller or '(none)'} are not of this rehearsal"
        reason = _judge_role(account, instance, instance.role, service, action, params)
        if reason:
            denials.append(reason)
            instances.timeline.record(f"{instance.name} calls", f"denied: {reason}")
        return reason

    return judge


def _judge_session(  # noqa: PLR0913, PLR0917  # a call and its caller
    account: JudgedAccount, instances: Instances, session: Session, service: str, action: str, params: dict[str, str]
) -> str:
    machine = instances.by_id.get(session.machine)
    if machine is None:
        return f"the machine {session.machine}, which assumed {session.role}, is not of this rehearsal"
    return _judge_role(account, machine, session.role, service, action, params)


def _judge_role(  # noqa: PLR0913, PLR0917  # a call and its caller
    account: JudgedAccount, instance: Instance, role: str, service: str, action: str, params: dict[str, str]
) -> str:
    """Return why a role may not make a call from a machine; empty if it may."""
    try:
        caller = _identify(account, instance, role)
        source = {
            **account.describe_source(service, instance.raw.vpc_id or ""),
            **_describe_machine(account, instance, role),
            **_describe_request(account, service, caller),
        }
        needed = [
            replace(authorization, context={**authorization.context, **source})
            for authorization in list_authorizations(account, service, action, params)
        ]
        statements = account.list_statements(role)
        if statements is None:
            return f"the role {role}{MISSING}"
        boundary = account.list_boundary(role)
        for authorization in needed:
            policies = Policies(statements, boundary, account.list_resource_statements(authorization.resource))
            if why := explain_denial(policies, caller, authorization):
                return f"{role} may not {authorization.action} on {authorization.resource}: {why}"
        if (service, action) == ("sts", "AssumeRole") and not account.trusts(params["RoleArn"], role):
            return f"{params['RoleArn']} does not trust {role}"
    except Exception as error:  # moto's and ours; a call that nobody judged must not pass
        return f"{_UNJUDGED} {service} {action} of {role}: {type(error).__name__}: {error}"
    return ""


def _identify(account: Account, instance: Instance, role: str) -> Caller:
    """Return a machine as a caller: a session of EC2, or of the role of jobs, is named after the instance."""
    session = f"arn:aws:sts::{account.id}:assumed-role/{role}/{instance.id}"
    return Caller(f"arn:aws:iam::{account.id}:role/{role}", session)


def _describe_request(account: Account, service: str, caller: Caller) -> dict[str, str]:
    """Return the condition keys that every request has, and that of requests for keys."""
    return {
        # The names of AWS lead machines to a server that speaks only TLS.
        "aws:SecureTransport": "true",
        "aws:PrincipalArn": caller.arn,
        "aws:PrincipalAccount": caller.account,
        "aws:RequestedRegion": _GLOBAL_REGION if service in _GLOBAL_SERVICES else account.region,
        "kms:CallerAccount": caller.account,
    }


def _describe_machine(account: Account, instance: Instance, role: str) -> dict[str, str]:
    """Return the condition key that names the machine; requests of a role that it has assumed do not have it.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
    """
    arn = f"arn:aws:ec2:{account.region}:{account.id}:instance/{instance.id}"
    return {"ec2:SourceInstanceARN": arn} if role == instance.role else {}
