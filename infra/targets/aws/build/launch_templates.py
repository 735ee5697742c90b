"""Launch templates: one per group and way of buying; what may be launched of each group follows from them."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from cluster import names
from cluster.spec import NodeGroup
from infra.targets.aws.build.network import Network
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.build.placement import Placement
from infra.targets.aws.launcher.fleet import FleetGroup, Purchase
from infra.targets.aws.plan import fleet, launch_template, machines
from infra.targets.aws.plan.fleet import Way
from infra.targets.aws.plan.interfaces import interfaces


@dataclass(frozen=True)
class TemplateArgs:
    images: dict[str, pulumi.Input[str]]
    """By group."""
    profile: aws.iam.InstanceProfile
    key_arn: pulumi.Input[str]
    user_data: pulumi.Input[str]
    """Base64."""
    security_group: pulumi.Input[str]


class LaunchTemplates(Part):
    groups: dict[str, pulumi.Output[FleetGroup]]

    def __init__(self, site: Site, args: TemplateArgs, network: Network, placement: Placement) -> None:
        super().__init__("LaunchTemplates", site)
        self._args, self._network, self._placement = args, network, placement
        self.groups = {name: self._group(name, group) for name, group in site.spec.groups.items()}
        self.register_outputs({})

    def _group(self, name: str, group: NodeGroup) -> pulumi.Output[FleetGroup]:
        ways = fleet.ways(self.site.spec, group)
        reservations = {way.purchase: way.reservation for way in ways}
        templates = {purchase: self._make(name, group, purchase, one) for purchase, one in reservations.items()}
        made = [self._known(name, way, templates[way.purchase]) for way in ways]
        return pulumi.Output.all(*made).apply(lambda known: fleet.fleet_group(name, group, ways, known))

    def _make(self, name: str, group: NodeGroup, purchase: Purchase, reservation: str | None) -> aws.ec2.LaunchTemplate:
        args, found = self._args, machines.compute(group)
        labels = {names.ROLE: "compute", names.GROUP: name}
        machine = launch_template.Machine(
            instance_type=found.name,
            interfaces=interfaces(found, group.fabric, ip_bandwidth=group.ip_bandwidth),
            security_groups=[args.security_group],
            image=args.images[name],
            profile_arn=args.profile.arn,
            key_arn=args.key_arn,
            user_data=args.user_data,
            # Tags of the provider reach the template, but not what is launched from it.
            tags=self.site.tags | labels | self.named(name),
        )
        return aws.ec2.LaunchTemplate(
            f"{name}-{purchase}",
            name=self.site.name(name, purchase),
            description=f"{name} of muster cluster {self.site.cluster}, {purchase}",
            tags=labels | self.named(name, purchase),
            opts=self.child(),
            **launch_template.arguments(machine, purchase, reservation),
        )

    def _known(self, group: str, way: Way, template: aws.ec2.LaunchTemplate) -> pulumi.Output[dict[str, object]]:
        label = way.place.label
        return pulumi.Output.all(
            zone=self._network.zones[label],
            subnet_id=self._network.subnets[label],
            launch_template_id=template.id,
            launch_template_version=template.latest_version.apply(str),
            placement_group=self._placement.names[group, label] if way.placed else None,
        )
