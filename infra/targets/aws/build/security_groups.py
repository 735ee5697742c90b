"""Security groups, with every rule as its own resource: groups refer to each other, which inline rules cannot do."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.build.network import Network
from infra.targets.aws.plan import security
from infra.targets.aws.plan.security import Rule


class SecurityGroups(AwsComponent):
    """The security groups of a cluster and their rules."""

    ids: dict[str, pulumi.Output[str]]
    """Ids by the group's name in the plan."""
    rules: list[pulumi.Resource]

    def __init__(self, site: Site, network: Network) -> None:
        super().__init__("SecurityGroups", site)
        self.ids = {name: self._create_group(name, network.vpc_id) for name in security.groups(site.spec)}
        self.rules = [self._create_rule(rule, network.cidr) for rule in security.rules(site.spec)]
        self.register_outputs({"ids": self.ids})

    def _create_group(self, name: str, vpc_id: pulumi.Input[str]) -> pulumi.Output[str]:
        group = aws.ec2.SecurityGroup(
            name,
            name=self.site.name(name),
            vpc_id=vpc_id,
            description=security.DESCRIPTIONS[name],
            tags=self.name_tag(name),
            opts=self.child_options(),
        )
        return group.id  # type: ignore[no-any-return]

    def _create_rule(self, rule: Rule, vpc_cidr: pulumi.Input[str]) -> pulumi.Resource:
        rule_type = aws.vpc.SecurityGroupIngressRule if rule.direction == "in" else aws.vpc.SecurityGroupEgressRule
        ports = {} if rule.ports is None else {"from_port": rule.ports[0], "to_port": rule.ports[1]}
        return rule_type(  # type: ignore[no-any-return]
            rule.name,
            security_group_id=self.ids[rule.group],
            description=rule.description,
            ip_protocol=rule.protocol,
            tags=self.name_tag(rule.name),
            opts=self.child_options(),
            **ports,
            **self._peer(rule.peer, vpc_cidr),
        )

    def _peer(self, peer: str, vpc_cidr: pulumi.Input[str]) -> dict[str, Any]:
        if peer == security.VPC:
            return {"cidr_ipv4": vpc_cidr}
        if peer in self.ids:
            return {"referenced_security_group_id": self.ids[peer]}
        return {"cidr_ipv4": peer}
