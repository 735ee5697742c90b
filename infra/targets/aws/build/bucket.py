"""The bucket from which nodes fetch the bundle and the controller fetches the fleet."""

from __future__ import annotations

import json

import pulumi
import pulumi_aws as aws

from infra.targets.aws import names
from infra.targets.aws.build.component import AwsComponent, Site
from infra.targets.aws.node.parameters import LOGS
from infra.targets.aws.plan import iam

_OLD_VERSION_DAYS = 7
_LOG_DAYS = 30


class Bucket(AwsComponent):
    """A private, encrypted bucket; everything in it but logs can be created again from this repository."""

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, site: Site, key_arn: pulumi.Input[str]) -> None:
        super().__init__("Bucket", site)
        self._key_arn = key_arn
        name = site.resolved.account.apply(lambda account: names.bucket(site.cluster, account, site.aws.region))
        bucket = aws.s3.Bucket(
            "bundle", bucket=name, force_destroy=True, tags=self.name_tag(), opts=self.child_options()
        )
        self.name, self.arn = bucket.id, bucket.arn
        self._protections = self._secure()
        self.register_outputs({"name": self.name})

    def put_bundle(self, key: pulumi.Input[str], asset: pulumi.Input[pulumi.Asset]) -> aws.s3.BucketObjectv2:
        """Upload a bundle. Old ones stay until the bucket goes, because the user data of old machines names them."""
        return aws.s3.BucketObjectv2(
            "bundle",
            bucket=self.name,
            key=key,
            source=asset,
            server_side_encryption="aws:kms",
            kms_key_id=self._key_arn,
            opts=self.child_options(*self._protections, retain_on_delete=True),
        )

    def put_json(self, key: str, text: pulumi.Input[str], *, secret: bool = False) -> aws.s3.BucketObjectv2:
        """Upload a JSON document; one that is secret is encrypted in the state, too."""
        return aws.s3.BucketObjectv2(
            key,
            bucket=self.name,
            key=key,
            content=text,
            content_type="application/json",
            server_side_encryption="aws:kms",
            kms_key_id=self._key_arn,
            opts=self.child_options(
                *self._protections, **({"additional_secret_outputs": ["content"]} if secret else {})
            ),
        )

    def _secure(self) -> list[pulumi.Resource]:
        """Make the bucket private, encrypted, versioned and TLS-only; return what uploads have to wait for."""
        bucket = self.name
        private = aws.s3.BucketPublicAccessBlock(
            "bundle",
            bucket=bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self.child_options(),
        )
        default = {"sse_algorithm": "aws:kms", "kms_master_key_id": self._key_arn}
        encrypted = aws.s3.BucketServerSideEncryptionConfiguration(
            "bundle",
            bucket=bucket,
            rules=[{"apply_server_side_encryption_by_default": default, "bucket_key_enabled": True}],
            opts=self.child_options(),
        )
        versioned = aws.s3.BucketVersioning(
            "bundle", bucket=bucket, versioning_configuration={"status": "Enabled"}, opts=self.child_options()
        )
        policy = self.arn.apply(lambda arn: json.dumps(iam.bucket_policy(arn)))
        tls_only = aws.s3.BucketPolicy("bundle", bucket=bucket, policy=policy, opts=self.child_options(private))
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
                },
                {
                    "id": "logs",
                    "status": "Enabled",
                    "filter": {"prefix": LOGS},
                    "expiration": {"days": _LOG_DAYS},
                    # A machine replaces its logs every few minutes.
                    "noncurrent_version_expiration": {"noncurrent_days": 1},
                },
            ],
            opts=self.child_options(versioned),
        )
        return [private, encrypted, versioned, tls_only]
