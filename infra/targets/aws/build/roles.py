"""IAM roles of the nodes: trusted by EC2 alone, bounded where the spec says so, one policy each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster.inventory import Role
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.plan import budget, iam
from infra.targets.aws.plan.iam import NODE_ROLES, Scope, Statement

_POLICIES: dict[Role, Callable[[Scope], tuple[Statement, ...]]] = {
    "controller": iam.controller,
    "login": iam.login,
    "compute": iam.compute,
}


class Roles(Part):
    profiles: dict[Role, aws.iam.InstanceProfile]
    policies: dict[Role, pulumi.Resource]
    """Machines wait for these: the first thing they do needs them."""
    no_launch: aws.iam.Policy | None
    """What AWS attaches to the controller's role when the budget is spent."""

    def __init__(self, site: Site, scope: pulumi.Output[Scope]) -> None:
        super().__init__("Roles", site)
        self.no_launch = self._no_launch() if budget.stops(site.spec) else None
        self.roles = {role: self._role(role) for role in NODE_ROLES}
        self.policies = {role: self._policy(role, scope) for role in NODE_ROLES}
        self.profiles = {role: self._profile(role) for role in NODE_ROLES}
        self.register_outputs({})

    def _no_launch(self) -> aws.iam.Policy:
        found = {"partition": self.site.resolved.partition, "account": self.site.resolved.account}

        def text(known: dict[str, str]) -> str:
            return json.dumps(iam.document(iam.no_launch(region=self.site.aws.region, **known)))

        return aws.iam.Policy(
            "no-launch",
            name=self.site.name("no-launch"),
            description="the budget of the month is spent",
            policy=pulumi.Output.all(**found).apply(text),
            opts=self.child(),
        )

    def _role(self, role: Role) -> aws.iam.Role:
        """The engine does not know whether AWS has attached the policy by now: a role lets go of it when it goes, and
        goes before it."""
        trust = self.site.resolved.account.apply(lambda account: json.dumps(iam.trust(role, account)))
        return aws.iam.Role(
            role,
            name=self.site.name(role),
            description=f"{role} of muster cluster {self.site.cluster}",
            assume_role_policy=trust,
            permissions_boundary=self.site.aws.permissions_boundary,
            force_detach_policies=True,
            opts=self.child(*([self.no_launch] if self.no_launch else [])),
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
