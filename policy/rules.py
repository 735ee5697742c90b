"""All security rules, by the ids that checkov gives them.

Checkov reads Terraform; these read what the Pulumi engine gets, so that no translation can hide a property. This
package imports nothing of muster, because the policy pack runs in an environment of its own.
"""

from __future__ import annotations

from policy import permission_rules, resource_rules
from policy.rule import Rule

RULES: tuple[Rule, ...] = (*resource_rules.RULES, *permission_rules.RULES)
