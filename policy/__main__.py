"""The policy pack: reports every resource that breaks a rule, before Pulumi creates it.

Use: `pulumi install` in this folder, then `pulumi preview --policy-pack policy` on any stack with AWS resources.
It needs a released Pulumi: the language host that muster builds from source (setup/pulumi_go.py) cannot start packs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from pulumi_policy import EnforcementLevel, PolicyPack, ResourceValidationArgs, ResourceValidationPolicy

# Pulumi runs this file by its path, without the repository on the import path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from policy.rule import Rule
from policy.rules import RULES


def build_policy(rule: Rule) -> ResourceValidationPolicy:
    """Return the policy that enforces a rule."""

    def validate(args: ResourceValidationArgs, report: Callable[[str], None]) -> None:
        if not rule.allows(args.resource_type, args.props):
            report(f"{rule.id}: {rule.description}")

    return ResourceValidationPolicy(name=rule.policy_name, description=rule.description, validate=validate)


PolicyPack(
    name="muster-aws",
    enforcement_level=EnforcementLevel.MANDATORY,
    policies=[build_policy(rule) for rule in RULES],
)
