"""A Pulumi program that creates security rules on Nebius, and a resource that depends on them, as a node does."""

from __future__ import annotations

import pulumi

from infra.targets.nebius.build.host_key import HostKey
from infra.targets.nebius.build.resource import CloudResource, ResourceArgs
from infra.targets.nebius.plan import rule_specs

PROJECT = "project-e00test"
LABELS = {"muster.cluster": "demo", "muster.stack": "rules", "muster.home": "abc"}
ssh_from = pulumi.Config("muster").require_object("cluster")["ssh_from"]
network = CloudResource(
    "network", ResourceArgs("network", PROJECT, "demo", LABELS, {}, "network.cidr"), pulumi.ResourceOptions()
)
group = CloudResource(
    "group",
    ResourceArgs("security group", PROJECT, "demo", LABELS, {"networkId": network.id}, "nebius.ssh_from"),
    pulumi.ResourceOptions(),
)
rules = [
    CloudResource(
        f"rule-{name}",
        ResourceArgs("security rule", PROJECT, name, LABELS, spec, "nebius.ssh_from", parent=group.id),
        pulumi.ResourceOptions(),
    )
    for name, spec in rule_specs(group.id, ssh_from).items()
]
key = HostKey("host-key", cluster="demo", node="controller", opts=pulumi.ResourceOptions(depends_on=rules))
pulumi.export("host_key", key.public)
