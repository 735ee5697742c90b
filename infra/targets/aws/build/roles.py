"""IAM roles of the nodes: trusted by EC2 alone, with one policy each, bounded where the spec names a boundary.

The policies that the spec names are attached to them, and to the role of jobs, which nodes assume for their users.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster.inventory import Role
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.plan import budget, iam
from infra.targets.aws.plan.iam import NODE_ROLES
from infra.targets.aws.plan.policy import Scope, Statement

_STATEMENTS: dict[Role, Callable[[Scope], tuple[Statement, ...]]] = {
    "controller": iam.controller,
    "login": iam.login,
    "compute": iam.compute,
}


class Roles(AwsComponent):
    """A role with its policy and instance profile for each kind of node."""

    roles: dict[Role, aws.iam.Role]
    profiles: dict[Role, aws.iam.InstanceProfile]
    policies: dict[Role, pulumi.Resource]
    """Machines wait for these, because their first call needs them."""
    no_launch: aws.iam.Policy | None
    """The policy that AWS attaches to the controller's role when the budget is spent."""

    def __init__(self, site: Site, scope: pulumi.Output[Scope]) -> None:
        super().__init__("Roles", site)
        self.no_launch = self._create_no_launch() if budget.stops(site.spec) else None
        self.roles = {role: self._create_role(role) for role in NODE_ROLES}
        self.policies = {role: self._create_policy(role, scope) for role in NODE_ROLES}
        self.profiles = {role: self._create_profile(role) for role in NODE_ROLES}
        extra = site.aws.policies
        for node_role in NODE_ROLES:
            self._attach(node_role, self.roles[node_role], getattr(extra, node_role))
        if extra.jobs:
            self._attach(iam.JOBS, self._create_jobs_role(), extra.jobs)
        self.register_outputs({})

    def _create_no_launch(self) -> aws.iam.Policy:
        def render(account: dict[str, str]) -> str:
            return json.dumps(iam.document(iam.no_launch(region=self.site.aws.region, **account)))

        account = {"partition": self.site.resolved.partition, "account": self.site.resolved.account}
        return aws.iam.Policy(
            "no-launch",
            name=self.site.name("no-launch"),
            description="the budget of the month is spent",
            policy=pulumi.Output.all(**account).apply(render),
            opts=self.child_options(),
        )

    def _create_role(self, role: Role) -> aws.iam.Role:
        """Create a role that is deleted before the no-launch policy and detaches it on the way.

        AWS may have attached that policy by itself, which Pulumi's state does not show.
        """
        trust = self.site.resolved.account.apply(lambda account: json.dumps(iam.trust(role, account)))
        return aws.iam.Role(
            role,
            name=self.site.name(role),
            description=f"{role} of muster cluster {self.site.cluster}",
            assume_role_policy=trust,
            permissions_boundary=self.site.aws.permissions_boundary,
            force_detach_policies=True,
            opts=self.child_options(*([self.no_launch] if self.no_launch else [])),
        )

    def _create_jobs_role(self) -> aws.iam.Role:
        trust = pulumi.Output.all(*(self.roles[role].arn for role in iam.JOB_HOSTS)).apply(
            lambda arns: json.dumps(iam.trust_job_hosts(arns))
        )
        return aws.iam.Role(
            iam.JOBS,
            name=self.site.name(iam.JOBS),
            description=f"users' programs of muster cluster {self.site.cluster}",
            assume_role_policy=trust,
            permissions_boundary=self.site.aws.permissions_boundary,
            force_detach_policies=True,
            opts=self.child_options(),
        )

    def _attach(self, name: str, role: aws.iam.Role, policies: Sequence[str]) -> None:
        for arn in policies:
            aws.iam.RolePolicyAttachment(
                f"{name}-{_short_name(arn)}", role=role.name, policy_arn=arn, opts=self.child_options()
            )

    def _create_policy(self, role: Role, scope: pulumi.Output[Scope]) -> pulumi.Resource:
        policy: pulumi.Resource = aws.iam.RolePolicy(
            role,
            name=role,
            role=self.roles[role].name,
            policy=scope.apply(lambda values: json.dumps(iam.document(_STATEMENTS[role](values)))),
            opts=self.child_options(),
        )
        return policy

    def _create_profile(self, role: Role) -> aws.iam.InstanceProfile:
        return aws.iam.InstanceProfile(
            role, name=self.site.name(role), role=self.roles[role].name, opts=self.child_options(self.policies[role])
        )


def _short_name(policy: str) -> str:
    """Return the account and the name in the ARN of a policy: two accounts may have policies of the same name."""
    return policy.partition("::")[2].replace(":policy/", "-").replace("/", "-")


def resolve_scope(site: Site, **resources: Any) -> pulumi.Output[Scope]:
    """Return what the policies name, available once all of it exists."""
    fixed = {"region": site.aws.region, "cluster": site.cluster}
    account = {"account": site.resolved.account, "partition": site.resolved.partition}
    return pulumi.Output.all(**fixed, **account, **resources).apply(lambda values: Scope(**values))
