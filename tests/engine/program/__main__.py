"""A Pulumi program that creates the machines of the local target without bootstrap."""

from __future__ import annotations

import pulumi

from cluster.spec import ClusterSpec
from infra.guard import ChangeGuard
from infra.resources.secrets import ClusterSecrets
from infra.targets.registry import get_target as target
from infra.targets.registry import plan_of as plan
from infra.targets.target import Context

spec = ClusterSpec.model_validate(pulumi.Config("muster").require_object("cluster"))
stack = pulumi.get_stack()
guard = ChangeGuard("guard", spec=spec.model_dump_json(), stack=stack)
secrets = ClusterSecrets("secrets", cluster=spec.name, opts=pulumi.ResourceOptions(depends_on=[guard]))
built = target(spec.target).build(plan(spec), Context(stack, guard, spec, secrets))
pulumi.export("inventory", built.inventory)
pulumi.export("addresses", built.addresses)
pulumi.export("ssh_private_key", secrets.ssh_private_key)
