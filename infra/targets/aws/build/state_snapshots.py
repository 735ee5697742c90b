"""Daily snapshots of the volume with queue and accounting, by Data Lifecycle Manager; they outlive the cluster."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.targets.aws import names
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.policy import Scope

# At night in Europe and America.
_START_UTC = "05:00"


class StateSnapshots(AwsComponent):
    """The lifecycle policy that takes and deletes snapshots, and its role."""

    def __init__(self, site: Site, scope: pulumi.Output[Scope]) -> None:
        super().__init__("StateSnapshots", site)
        role = aws.iam.Role(
            "snapshots",
            name=site.name("snapshots"),
            description=f"snapshots of muster cluster {site.cluster}",
            assume_role_policy=scope.apply(lambda values: json.dumps(iam.trust("snapshots", values.account))),
            permissions_boundary=site.aws.permissions_boundary,
            opts=self.child_options(),
        )
        permissions = aws.iam.RolePolicy(
            "snapshots",
            name="snapshots",
            role=role.name,
            policy=scope.apply(lambda values: json.dumps(iam.document(iam.snapshots(values)))),
            opts=self.child_options(),
        )
        aws.dlm.LifecyclePolicy(
            "state",
            description=f"queue and accounting of muster cluster {site.cluster}",
            execution_role_arn=role.arn,
            state="ENABLED",
            policy_details={
                "resource_types": ["VOLUME"],
                # One matching tag is enough for AWS, so it must be one that only this volume has.
                "target_tags": self.name_tag("state"),
                "schedules": [
                    {
                        "name": "daily",
                        "create_rule": {"interval": 24, "interval_unit": "HOURS", "times": _START_UTC},
                        "retain_rule": {"count": site.aws.state_backup_days},
                        "copy_tags": True,
                        "tags_to_add": names.keep_tag(keep=True),
                    }
                ],
            },
            tags=self.name_tag("state"),
            opts=self.child_options(permissions),
        )
        self.register_outputs({})
