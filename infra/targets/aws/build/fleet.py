"""What compute nodes are launched from: placement groups, launch templates, and the fleet document that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster import names
from cluster.spec import NodeGroup
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.build.foundation import Foundation
from infra.targets.aws.build.network import Network
from infra.targets.aws.launcher.fleet import Fleet, FleetGroup, Purchase
from infra.targets.aws.node import parameters
from infra.targets.aws.plan import capacity, launch_template, machines
from infra.targets.aws.plan.capacity import PlannedLaunch


class Placement(AwsComponent):
    """Placement groups: one per node group and zone, because a cluster placement group cannot span zones."""

    names: dict[tuple[str, str], pulumi.Output[str]]
    """Names by node group and label of the place."""

    def __init__(self, site: Site) -> None:
        super().__init__("Placement", site)
        keys = dict.fromkeys(
            (name, launch.place.label)
            for name, group in site.spec.groups.items()
            for launch in capacity.planned_launches(site.spec, group)
            if launch.placement
        )
        self.names = {(group, label): self._create(group, label) for group, label in keys}
        self.register_outputs({})

    def _create(self, group: str, label: str) -> pulumi.Output[str]:
        placement_group = aws.ec2.PlacementGroup(
            f"{group}-{label}",
            name=self.site.name(group, label),
            strategy="cluster",
            tags=self.name_tag(group, label),
            opts=self.child_options(),
        )
        return placement_group.name  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TemplateArgs:
    """What all launch templates of a cluster share, and the image of each group."""

    images: Mapping[str, pulumi.Input[str]]
    """Image ids by node group."""
    profile: aws.iam.InstanceProfile
    key_arn: pulumi.Input[str]
    user_data: pulumi.Input[str]
    """In base64."""
    security_group: pulumi.Input[str]


class LaunchTemplates(AwsComponent):
    """Launch templates: one per node group and kind of purchase."""

    groups: dict[str, pulumi.Output[FleetGroup]]
    """Entries of the fleet by node group."""

    def __init__(self, site: Site, args: TemplateArgs, network: Network, placement: Placement) -> None:
        super().__init__("LaunchTemplates", site)
        self._args, self._network, self._placement = args, network, placement
        self.groups = {name: self._create_group(name, group) for name, group in site.spec.groups.items()}
        self.register_outputs({})

    def _create_group(self, name: str, group: NodeGroup) -> pulumi.Output[FleetGroup]:
        launches = capacity.planned_launches(self.site.spec, group)
        reservations = {launch.purchase: launch.reservation for launch in launches}
        templates = {
            purchase: self._create_template(name, group, purchase, reservation)
            for purchase, reservation in reservations.items()
        }
        resources = [self._describe(name, launch, templates[launch.purchase]) for launch in launches]
        return pulumi.Output.all(self._args.security_group, *resources).apply(
            lambda resolved: capacity.fleet_group(name, group, launches, resolved[1:], resolved[0])
        )

    def _create_template(
        self, name: str, group: NodeGroup, purchase: Purchase, reservation: str | None
    ) -> aws.ec2.LaunchTemplate:
        args, instance_type = self._args, machines.compute(group)
        labels = {names.ROLE: "compute", names.GROUP: name}
        machine = launch_template.Machine(
            instance_type=instance_type.name,
            image=args.images[name],
            profile_arn=args.profile.arn,
            key_arn=args.key_arn,
            user_data=args.user_data,
            # The provider tags the template, but not what is launched from it.
            tags=self.site.tags | labels | self.name_tag(name),
            root_gb=launch_template.root_gb(group),
        )
        return aws.ec2.LaunchTemplate(
            f"{name}-{purchase}",
            name=self.site.name(name, purchase),
            description=f"{name} of muster cluster {self.site.cluster}, {purchase}",
            tags=labels | self.name_tag(name, purchase),
            opts=self.child_options(),
            **launch_template.arguments(machine, purchase, reservation),
        )

    def _describe(
        self, group: str, launch: PlannedLaunch, template: aws.ec2.LaunchTemplate
    ) -> pulumi.Output[dict[str, object]]:
        """Return the fields of a launch option that only AWS knows."""
        label = launch.place.label
        return pulumi.Output.all(
            zone=self._network.zones[label],
            subnet_id=self._network.subnets[label],
            launch_template_id=template.id,
            launch_template_version=template.latest_version.apply(str),
            placement_group=self._placement.names[group, label] if launch.placement else None,
        )


@dataclass(frozen=True)
class FleetDocument:
    """The Fleet as JSON, and its copy in the bucket for the controller."""

    text: pulumi.Output[str]
    upload: pulumi.Resource


def create_fleet(
    site: Site, foundation: Foundation, args: TemplateArgs, bundle_digest: pulumi.Input[str]
) -> FleetDocument:
    """Create what nodes are launched from, and upload the document that lists it."""
    templates = LaunchTemplates(site, args, foundation.network, Placement(site))
    spec, zone = site.spec, foundation.zone

    def render(values: Mapping[str, Any]) -> str:
        return Fleet(
            cluster=spec.name,
            stack=site.stack,
            region=site.aws.region,
            hosted_zone_id=values["zone"],
            domain=zone.domain,
            bundle=values["bundle"],
            tags=spec.tags,
            groups=tuple(values["groups"]),
            budget_name=site.name() if spec.budget.usd_per_month else None,
            bucket=values["bucket"],
            machine_arns=f"arn:{values['partition']}:ec2:{site.aws.region}:{values['account']}:instance/",
        ).model_dump_json()

    groups = list(templates.groups.values())
    text = pulumi.Output.all(
        groups=groups,
        zone=zone.zone_id,
        bundle=bundle_digest,
        bucket=foundation.bucket.name,
        partition=site.resolved.partition,
        account=site.resolved.account,
    ).apply(render)
    return FleetDocument(text, foundation.bucket.put_json(parameters.FLEET, text))
