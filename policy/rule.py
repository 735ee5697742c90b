"""A security rule: a plain function of a resource's properties, with examples of what it must refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Props = Mapping[str, Any]
"""Properties as the Pulumi engine gets them, with names in camel case."""


@dataclass(frozen=True)
class Rule:
    """A security rule for resources of some types."""

    id: str
    """The id that checkov gives the rule, where it has one."""
    description: str
    types: tuple[str, ...]
    holds: Callable[[Props], bool]
    violations: tuple[tuple[str, Props], ...]
    """Type and properties of resources that break the rule, for the tests."""

    def allows(self, type_: str, props: Props) -> bool:
        """Return whether a resource satisfies the rule; resources of other types always do."""
        return type_ not in self.types or self.holds(props)

    @property
    def policy_name(self) -> str:
        return self.id.lower().replace("_", "-").replace("/", "-")
