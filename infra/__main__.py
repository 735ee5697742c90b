"""The Pulumi program: load and validate the spec, declare the cluster, export its outputs."""

# The imports stand below the line that makes them faster.
# ruff: noqa: E402
from __future__ import annotations

import gc
import os

# Most of what is imported and created stays until the program ends: looking for garbage would take a fifth of its time.
gc.disable()

import pulumi

from cluster.spec.issue import SpecError
from infra.engine.environment import BUDGET_CHECKED, ROTATION
from infra.guard import ChangeGuard
from infra.home import Home
from infra.resources.secrets import ClusterSecrets
from infra.targets.mixins import Budgeted
from infra.targets.registry import load_spec, target_of
from infra.targets.target import Context
from infra.validate import validate

stack = pulumi.get_stack()
repo = Home.of(os.environ).stack(stack).home.repo

# Pulumi has decrypted the secrets in it, which go no further than this.
spec = load_spec(pulumi.Config("muster").require_object("cluster"))
webhook = pulumi.Output.secret(spec.alerts.webhook) if spec.alerts.webhook else None
spec = spec.model_copy(update={"alerts": spec.alerts.without_secret()})
issues = validate(spec, root=repo)
target = target_of(spec)
checked_before = target.price_issues if isinstance(target, Budgeted) and os.environ.get(BUDGET_CHECKED) else frozenset()
if any(issue.level == "error" and issue.code not in checked_before for issue in issues):
    raise SpecError(issues)

guard = ChangeGuard("guard", spec=spec.model_dump_json(), stack=stack)
secrets = ClusterSecrets(
    "secrets",
    cluster=spec.name,
    rotation=os.environ.get(ROTATION, ""),
    opts=pulumi.ResourceOptions(depends_on=[guard]),
)
built = target.build(target.plan(spec), Context(stack, guard, spec, secrets, webhook))
ready = built.start()

pulumi.export("cluster", spec.name)
pulumi.export("inventory", built.inventory)
pulumi.export("login", built.addresses.apply(lambda addresses: addresses.get("login", addresses["controller"])))
pulumi.export("ssh_private_key", secrets.ssh_private_key)
pulumi.export("ready", ready)
