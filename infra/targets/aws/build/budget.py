"""A monthly budget: it sends e-mails at fixed percentages, and the last one stops the controller's launches."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from cluster import names
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.build.roles import Roles
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.budget import NOTIFY_AT_PERCENT, STOP_AT_PERCENT
from infra.targets.aws.plan.policy import Scope


class Budget(AwsComponent):
    """The budget of a cluster, and its action if the spec names addresses to notify."""

    def __init__(self, site: Site, scope: pulumi.Output[Scope], roles: Roles) -> None:
        super().__init__("Budget", site)
        budget = self._create_budget()
        if roles.no_launch:
            self._create_action(budget, scope, roles.no_launch.arn, roles.roles["controller"].name)
        self.register_outputs({})

    def _create_budget(self) -> aws.budgets.Budget:
        spec = self.site.spec
        return aws.budgets.Budget(
            "monthly",
            name=self.site.name(),
            budget_type="COST",
            limit_amount=f"{spec.budget.usd_per_month:.1f}",
            limit_unit="USD",
            time_unit="MONTHLY",
            # Counts only once the tag is activated for cost allocation in the account's billing settings.
            cost_filters=[{"name": "TagKeyValue", "values": [f"user:{names.CLUSTER}${spec.name}"]}],
            notifications=[
                {
                    "comparison_operator": "GREATER_THAN",
                    "threshold": percent,
                    "threshold_type": "PERCENTAGE",
                    "notification_type": "ACTUAL",
                    "subscriber_email_addresses": list(spec.budget.notify),
                }
                for percent in NOTIFY_AT_PERCENT
                if spec.budget.notify
            ],
            tags=self.name_tag(),
            opts=self.child_options(),
        )

    def _create_action(
        self,
        budget: aws.budgets.Budget,
        scope: pulumi.Output[Scope],
        denial_arn: pulumi.Input[str],
        controller_role: pulumi.Input[str],
    ) -> None:
        """Attach the policy that denies launches once the budget is spent."""
        role = aws.iam.Role(
            "budget",
            name=self.site.name("budget"),
            assume_role_policy=scope.apply(lambda values: json.dumps(iam.trust("budget", values.account))),
            permissions_boundary=self.site.aws.permissions_boundary,
            opts=self.child_options(),
        )
        policy = aws.iam.RolePolicy(
            "budget",
            name="budget",
            role=role.name,
            policy=scope.apply(lambda values: json.dumps(iam.document(iam.budget(values)))),
            opts=self.child_options(),
        )
        aws.budgets.BudgetAction(
            "no-launch",
            budget_name=budget.name,
            action_type="APPLY_IAM_POLICY",
            approval_model="AUTOMATIC",
            notification_type="ACTUAL",
            action_threshold={"action_threshold_type": "PERCENTAGE", "action_threshold_value": STOP_AT_PERCENT},
            definition={"iam_action_definition": {"policy_arn": denial_arn, "roles": [controller_role]}},
            execution_role_arn=role.arn,
            subscribers=[
                {"subscription_type": "EMAIL", "address": address} for address in self.site.spec.budget.notify
            ],
            opts=self.child_options(policy),
        )
