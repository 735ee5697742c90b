"""Security groups, and every rule as a resource of its own: groups name each other, which inline rules cannot."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.targets.aws.build.network import Network
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.plan import security
from infra.targets.aws.plan.security import Rule


class SecurityGroups(Part):
    ids: dict[str, pulumi.Output[str]]

    def __init__(self, site: Site, network: Network) -> None:
        super().__init__("SecurityGroups", site)
        self._cidr = network.cidr
        self.ids = {name: self._group(name, network.vpc_id) for name in security.groups(site.spec)}
        self.rules = [self._rule(rule) for rule in security.rules(site.spec)]
        self.register_outputs({"ids": self.ids})

    def _group(self, name: str, vpc_id: pulumi.Input[str]) -> pulumi.Output[str]:
        made = aws.ec2.SecurityGroup(
            name,
            name=self.site.name(name),
            vpc_id=vpc_id,
            description=security.DESCRIPTIONS[name],
            tags=self.named(name),
            opts=self.child(),
        )
        return made.id  # type: ignore[no-any-return]

    def _rule(self, rule: Rule) -> pulumi.Resource:
        make = aws.vpc.SecurityGroupIngressRule if rule.direction == "in" else aws.vpc.SecurityGroupEgressRule
        ports = {} if rule.ports is None else {"from_port": rule.ports[0], "to_port": rule.ports[1]}
        return make(  # type: ignore[no-any-return]
            rule.name,
            security_group_id=self.ids[rule.group],
            description=rule.description,
            ip_protocol=rule.protocol,
            tags=self.named(rule.name),
            opts=self.child(),
            **ports,
            **self._peer(rule.peer),
        )

    def _peer(self, peer: str) -> dict[str, Any]:
        if peer == security.VPC:
            return {"cidr_ipv4": self._cidr}
        if peer in self.ids:
            return {"referenced_security_group_id": self.ids[peer]}
        return {"cidr_ipv4": peer}
