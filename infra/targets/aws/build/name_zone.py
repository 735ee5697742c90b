"""The private zone in which every node has a name; those of compute nodes are written by whoever launches them."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from infra.targets.aws import names
from infra.targets.aws.build.part import Part, Site

_TTL_S = 60


class NameZone(Part):
    zone_id: pulumi.Output[str]

    def __init__(self, site: Site, vpc_id: pulumi.Input[str]) -> None:
        super().__init__("NameZone", site)
        self.domain = names.domain(site.cluster)
        # Records of compute nodes are not in the state; without force they would hold the zone back.
        zone = aws.route53.Zone(
            "zone",
            name=self.domain,
            comment=f"nodes of muster cluster {site.cluster}",
            vpcs=[{"vpc_id": vpc_id}],
            force_destroy=True,
            opts=self.child(),
        )
        self.zone_id = zone.zone_id
        self.register_outputs({"zone_id": self.zone_id})

    def add(self, node: str, address: pulumi.Input[str]) -> None:
        aws.route53.Record(
            node,
            zone_id=self.zone_id,
            name=f"{node}.{self.domain}",
            type="A",
            ttl=_TTL_S,
            records=[address],
            opts=self.child(),
        )
