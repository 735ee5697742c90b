"""Placement groups: one per node group and zone, because a cluster placement group cannot span zones."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.plan import fleet


class Placement(Part):
    names: dict[tuple[str, str], pulumi.Output[str]]
    """By group and label of the place."""

    def __init__(self, site: Site) -> None:
        super().__init__("Placement", site)
        wanted = dict.fromkeys(
            (name, way.place.label)
            for name, group in site.spec.groups.items()
            for way in fleet.ways(site.spec, group)
            if way.placed
        )
        self.names = {(group, label): self._make(group, label) for group, label in wanted}
        self.register_outputs({})

    def _make(self, group: str, label: str) -> pulumi.Output[str]:
        made = aws.ec2.PlacementGroup(
            f"{group}-{label}",
            name=self.site.name(group, label),
            strategy="cluster",
            tags=self.named(group, label),
            opts=self.child(),
        )
        return made.name  # type: ignore[no-any-return]
