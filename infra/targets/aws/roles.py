"""IAM roles of the nodes: trusted by EC2 alone, bounded where the spec says so, one policy each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.inventory import Role
from infra.plan.aws import iam
from infra.plan.aws.iam import NODE_ROLES, Scope, Statement
from infra.targets.aws.part import Part, Site

_POLICIES: dict[Role, Callable[[Scope], tuple[Statement, ...]]] = {
    "controller": iam.controller,
    "login": iam.login,
    "compute": iam.compute,
}


class Roles(Part):
    profiles: dict[Role, aws.iam.InstanceProfile]
    policies: dict[Role, pulumi.Resource]
    """Machines wait for these: the first thing they do needs them."""

    def __init__(self, site: Site, scope: pulumi.Output[Scope]) -> None:
        super().__init__("Roles", site)
        self.roles = {role: self._role(role) for role in NODE_ROLES}
        self.policies = {role: self._policy(role, scope) for role in NODE_ROLES}
        self.profiles = {role: self._profile(role) for role in NODE_ROLES}
        self.register_outputs({})

    def _role(self, role: Role) -> aws.iam.Role:
        trust = self.site.resolved.account.apply(lambda account: json.dumps(iam.trust(role, account)))
        return aws.iam.Role(
            role,
            name=self.site.name(role),
            description=f"{role} of muster cluster {self.site.cluster}",
            assume_role_policy=trust,
            permissions_boundary=self.site.aws.permissions_boundary,
            opts=self.child(),
        )

    def _policy(self, role: Role, scope: pulumi.Output[Scope]) -> pulumi.Resource:
        def text(known: Scope) -> str:
            return json.dumps(iam.document(_POLICIES[role](known)))

        made: pulumi.Resource = aws.iam.RolePolicy(
            role, name=role, role=self.roles[role].name, policy=scope.apply(text), opts=self.child()
        )
        return made

    def _profile(self, role: Role) -> aws.iam.InstanceProfile:
        return aws.iam.InstanceProfile(
            role, name=self.site.name(role), role=self.roles[role].name, opts=self.child(self.policies[role])
        )


def scope(site: Site, **known: Any) -> pulumi.Output[Scope]:
    """What the policies name, once all of it exists."""
    fixed = {"region": site.aws.region, "cluster": site.cluster}
    asked = {"account": site.resolved.account, "partition": site.resolved.partition}
    return pulumi.Output.all(**fixed, **asked, **known).apply(lambda values: Scope(**values))
