"""Security rules over captured resources, by the ids that checkov gives them; each a plain function of properties.

Checkov itself reads Terraform; these read what the engine gets, where no translation can hide a property."""

from __future__ import annotations

from collections.abc import Iterator

from tests.infra.targets.aws.build import rules_of_rights, rules_of_things
from tests.infra.targets.aws.build.rule import Props, Rule

RULES: tuple[Rule, ...] = (*rules_of_things.RULES, *rules_of_rights.RULES)


def findings(type_: str, props: Props) -> Iterator[str]:
    for rule in RULES:
        if type_ in rule.types and not rule.holds(props):
            yield rule.id
