"""The bucket from which nodes fetch the bundle and what they have to know of the cluster."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.targets.aws import names
from infra.targets.aws.build.bundle import Packed
from infra.targets.aws.build.part import Part, Site
from infra.targets.aws.node import parameters
from infra.targets.aws.plan import iam

_OLD_VERSION_DAYS = 7


class Bucket(Part):
    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, site: Site, key_arn: pulumi.Input[str]) -> None:
        super().__init__("Bucket", site)
        self._key_arn = key_arn
        name = site.resolved.account.apply(lambda account: names.bucket(site.cluster, account, site.aws.region))
        # Holds nothing that this repository cannot make again.
        self.bucket = aws.s3.Bucket("bundle", bucket=name, force_destroy=True, tags=self.named(), opts=self.child())
        self.name, self.arn = self.bucket.id, self.bucket.arn
        self._closed = self._close()
        self.register_outputs({"name": self.name})

    def put_bundle(self, packed: pulumi.Output[Packed]) -> aws.s3.BucketObjectv2:
        """Old bundles stay with the bucket: a machine's user data goes on naming the one it was made with."""
        return aws.s3.BucketObjectv2(
            "bundle",
            bucket=self.name,
            key=packed.apply(lambda one: parameters.bundle(one.sha256)),
            source=packed.apply(lambda one: pulumi.FileAsset(one.path)),
            server_side_encryption="aws:kms",
            kms_key_id=self._key_arn,
            opts=self.child(*self._closed, retain_on_delete=True),
        )

    def put_text(self, key: str, text: pulumi.Input[str]) -> aws.s3.BucketObjectv2:
        return aws.s3.BucketObjectv2(
            key,
            bucket=self.name,
            key=key,
            content=text,
            content_type="application/json",
            server_side_encryption="aws:kms",
            kms_key_id=self._key_arn,
            opts=self.child(*self._closed),
        )

    def _close(self) -> list[pulumi.Resource]:
        """Private, encrypted, over TLS only, and nothing half-written stays."""
        bucket = self.name
        private = aws.s3.BucketPublicAccessBlock(
            "bundle",
            bucket=bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self.child(),
        )
        default = {"sse_algorithm": "aws:kms", "kms_master_key_id": self._key_arn}
        encrypted = aws.s3.BucketServerSideEncryptionConfiguration(
            "bundle",
            bucket=bucket,
            rules=[{"apply_server_side_encryption_by_default": default, "bucket_key_enabled": True}],
            opts=self.child(),
        )
        versioned = aws.s3.BucketVersioning(
            "bundle", bucket=bucket, versioning_configuration={"status": "Enabled"}, opts=self.child()
        )
        policy = self.arn.apply(lambda arn: json.dumps(iam.bucket_policy(arn)))
        tls_only = aws.s3.BucketPolicy("bundle", bucket=bucket, policy=policy, opts=self.child(private))
        aws.s3.BucketLifecycleConfiguration(
            "bundle",
            bucket=bucket,
            rules=[
                {
                    "id": "leftovers",
                    "status": "Enabled",
                    "filter": {"prefix": ""},
                    "abort_incomplete_multipart_upload": {"days_after_initiation": 1},
                    "noncurrent_version_expiration": {"noncurrent_days": _OLD_VERSION_DAYS},
                }
            ],
            opts=self.child(versioned),
        )
        return [private, encrypted, versioned, tls_only]
