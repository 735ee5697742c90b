"""All security rules, by the ids that checkov gives them.

Checkov reads Terraform; these read what the Pulumi engine gets, so that no translation can hide a property. This
package imports nothing of muster, because the policy pack runs in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from policy import rules_of_resources, rules_of_rights
from policy.rule import Props, Rule

RULES: tuple[Rule, ...] = (*rules_of_resources.RULES, *rules_of_rights.RULES)


def find_violations(type_: str, props: Props) -> Iterator[str]:
    """Yield the ids of the rules that a resource breaks."""
    for rule in RULES:
        if type_ in rule.types and not rule.holds(props):
            yield rule.id
