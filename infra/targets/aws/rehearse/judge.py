"""The judge of calls: who may do what in the simulated account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from infra.targets.aws.rehearse.authorizations import Account, list_authorizations
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.moto_server import Judge
from infra.targets.aws.rehearse.policies import Statement, list_denied

# The end of the reason if a machine has outlived its role.
MISSING = " does not exist"


class JudgedAccount(Account, Protocol):
    """An account with the policies of its roles."""

    def describe_source(self, service: str, vpc: str, /) -> Mapping[str, str]:
        """Return the condition keys that a request from a VPC gets from the network on its way to a service."""

    def list_statements(self, role: str, /) -> list[Statement] | None:
        """Return the statements of all policies of a role; None if the role does not exist."""


def make_judge(account: JudgedAccount, instances: Instances, operator_key: str, denials: list[str]) -> Judge:
    """Return the judge of calls: muster's own commands may do anything, machines what their role permits.

    Everyone else is denied. Denials of machines, and calls that cannot be judged, are added to `denials`.
    """

    def judge(caller: str, service: str, action: str, params: dict[str, str]) -> str:
        if caller == operator_key:
            return ""
        instance = instances.find_caller(caller)
        if instance is None:
            return f"the credentials {caller or '(none)'} are not of this rehearsal"
        try:
            source = account.describe_source(service, instance.raw.vpc_id or "")
            needed = [
                replace(authorization, context={**authorization.context, **source})
                for authorization in list_authorizations(account, service, action, params)
            ]
            statements = account.list_statements(instance.role)
            denied = list_denied(statements or [], needed)
            reason = f"{instance.role} may not {denied[0].action} on {denied[0].resource}" if denied else ""
            if statements is None:
                reason = f"the role {instance.role}{MISSING}"
        except Exception as error:  # moto's and ours; a call that nobody judged must not pass
            reason = f"cannot judge {service} {action} of {instance.role}: {type(error).__name__}: {error}"
        if reason:
            denials.append(reason)
            instances.timeline.record(f"{instance.name} calls", f"denied: {reason}")
        return reason

    return judge
