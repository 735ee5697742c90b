"""The KMS key that encrypts disks, files, logs and secrets of the cluster, unless the spec names one."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.plan import iam

# The shortest that AWS allows: until then a key can be had back, and so can what it encrypts.
_DELETION_DAYS = 7


class Key(Part):
    arn: pulumi.Output[str]

    def __init__(self, site: Site) -> None:
        super().__init__("Key", site)
        self.arn = pulumi.Output.from_input(site.aws.kms_key) if site.aws.kms_key else self._make()
        self.register_outputs({"arn": self.arn})

    def _make(self) -> pulumi.Output[str]:
        site = self.site
        # Kept storage stays readable only as long as its key does.
        kept = any(storage.keep and storage.kind in ("fsx-lustre", "efs") for storage in site.spec.storage.values())
        policy = pulumi.Output.all(site.resolved.partition, site.resolved.account).apply(
            lambda known: json.dumps(iam.key_policy(known[0], site.aws.region, known[1], site.cluster))
        )
        key = aws.kms.Key(
            "key",
            description=f"muster cluster {site.cluster}",
            enable_key_rotation=True,
            deletion_window_in_days=_DELETION_DAYS,
            policy=policy,
            tags=self.named(),
            opts=self.child(retain_on_delete=kept),
        )
        aws.kms.Alias("key", name=f"alias/{site.name()}", target_key_id=key.key_id, opts=self.child())
        return key.arn  # type: ignore[no-any-return]
