"""Pulumi's state in an S3 bucket: `s3://BUCKET/PREFIX?region=REGION`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from infra.engine.state_store import StateStore, Version
from infra.engine.stop import BAD_INPUT, Stop
from infra.targets.aws.launcher.retries import watch_retries
from infra.targets.aws.plan.iam import bucket_policy

_EXAMPLE = "s3://BUCKET/PREFIX?region=REGION"
_WHERE = "state"
_OPTIONS = {
    "region": "the region of the bucket, required",
    "kms": "alias, id or ARN of a KMS key that encrypts the secrets of new stacks, instead of a passphrase",
    "profile": "an AWS profile",
    "endpoint": "the URL of a service that is compatible with S3",
}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_KEY_ARN = re.compile(r"arn:[a-z-]+:kms:([a-z0-9-]+):\d{12}:(key/[A-Za-z0-9-]+|alias/[A-Za-z0-9/_-]+)")
_KEY_NAME = re.compile(r"alias/[A-Za-z0-9/_-]+|(mrk-[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_KEY_WORDS = "alias/NAME, the id of a key, or the ARN of either in the region of the bucket"
_RIGHTS = (
    "s3:ListBucket, s3:ListBucketVersions and s3:GetBucketLocation on the bucket; "
    "s3:GetObject, s3:GetObjectVersion, s3:PutObject and s3:DeleteObject on its objects"
)
_MISSING = ("NoSuchBucket", "404", "NotFound")
_OLD_VERSION_DAYS = 90
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@dataclass(frozen=True)
class S3Url:
    """The parts of the URL of a state."""

    bucket: str
    prefix: str
    region: str
    kms: str = ""
    profile: str = ""
    endpoint: str = ""


def parse_url(text: str) -> S3Url:
    """Return the parts of a URL; raise Stop if it is invalid."""
    url = urlsplit(text)
    pairs = parse_qsl(url.query, keep_blank_values=True)
    options, prefix = dict(pairs), url.path.strip("/")
    unknown = sorted(set(options) - set(_OPTIONS))
    problem = ""
    if not _BUCKET.fullmatch(url.netloc):
        problem = f"'{url.netloc}' is not a bucket name; allowed: 3 to 63 lower-case letters, digits, dots and dashes"
    elif unknown:
        allowed = "; ".join(f"{name} ({what})" for name, what in _OPTIONS.items())
        problem = f"option '{unknown[0]}' is unknown; allowed: {allowed}"
    elif len(pairs) != len(options):
        problem = "an option is given twice; allowed: each once"
    elif not options.get("region"):
        problem = "the option region is missing; allowed: names such as eu-central-1"
    elif not _REGION.fullmatch(options["region"]):
        problem = f"region '{options['region']}' is not a region; allowed: names such as eu-central-1"
    elif "kms" in options and not _is_key(options["kms"], options["region"]):
        problem = f"kms '{options['kms']}' is not a key; allowed: {_KEY_WORDS}"
    elif any(part in ("", ".", "..") or part.startswith(".") for part in prefix.split("/") if prefix):
        problem = f"prefix '{prefix}' is invalid; allowed: names that do not start with a dot, separated by slashes"
    if problem:
        raise Stop(f"{_WHERE}: {text}: {problem}", f"write {_EXAMPLE}", BAD_INPUT)
    return S3Url(url.netloc, prefix, **options)


class S3StateStore(StateStore):
    """A prefix of a bucket."""

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        self.url, self.parts = url, parse_url(url)
        self._path_style = bool(self.parts.endpoint or any(environment.get(name) for name in _ENDPOINT_VARIABLES))
        self.secrets_provider = _render_secrets_provider(self.parts) if self.parts.kms else ""

    @property
    def backend_url(self) -> str:
        parts = self.parts
        options = {"region": parts.region, "profile": parts.profile, "endpoint": parts.endpoint}
        options["use_path_style"] = "true" if self._path_style else ""
        query = urlencode({name: value for name, value in options.items() if value})
        return f"s3://{parts.bucket}/{quote(parts.prefix)}?{query}"

    def check(self) -> None:
        with self._explained("list"):
            try:
                head = self._client.head_bucket(Bucket=self.parts.bucket)
                region = head.get("BucketRegion") or head["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
            except ClientError as refused:
                # The answer to a request in the wrong region names the right one, even without rights.
                region = refused.response["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region")
                if not region or region == self.parts.region:
                    raise
        if region and region != self.parts.region:
            raise Stop(
                f"{_WHERE}: {self.url}: bucket '{self.parts.bucket}' is in region {region}, not {self.parts.region}",
                f"write {self.url.replace(f'region={self.parts.region}', f'region={region}')}",
                BAD_INPUT,
            )

    def list_tags(self, prefix: str) -> dict[str, str]:
        with self._explained("list"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.parts.bucket, Prefix=self._key(prefix)
            )
            listed = [entry for page in pages for entry in page.get("Contents", [])]
        start = len(self._key(""))
        return {entry["Key"][start:]: entry["ETag"] for entry in listed}

    def read(self, key: str, version: str = "") -> bytes | None:
        chosen = {"VersionId": version} if version else {}
        with self._explained("read", key):
            try:
                answer = self._client.get_object(Bucket=self.parts.bucket, Key=self._key(key), **chosen)
                content: bytes = answer["Body"].read()
            except ClientError as refused:
                if refused.response["Error"]["Code"] in ("NoSuchKey", "NoSuchVersion", "InvalidArgument"):
                    return None
                raise
        return content

    def write(self, key: str, data: bytes) -> None:
        with self._explained("write", key):
            self._client.put_object(Bucket=self.parts.bucket, Key=self._key(key), Body=data)

    def create(self, key: str, data: bytes) -> bool:
        with self._explained("write", key):
            try:
                self._client.put_object(Bucket=self.parts.bucket, Key=self._key(key), Body=data, IfNoneMatch="*")
            except ClientError as refused:
                # A conflict means that another write of the same key is under way.
                if refused.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"):
                    return False
                raise
        return True

    def remove(self, key: str) -> None:
        with self._explained("delete", key):
            self._client.delete_object(Bucket=self.parts.bucket, Key=self._key(key))

    def versions(self, key: str) -> Sequence[Version]:
        with self._explained("list versions of", key):
            pages = self._client.get_paginator("list_object_versions").paginate(
                Bucket=self.parts.bucket, Prefix=self._key(key)
            )
            listed = [entry for page in pages for entry in page.get("Versions", [])]
        versions = [
            Version(entry["VersionId"], entry["LastModified"], entry["Size"], entry["IsLatest"])
            for entry in listed
            if entry["Key"] == self._key(key) and entry["VersionId"] != "null"
        ]
        return sorted(versions, key=lambda version: (version.is_latest, version.at), reverse=True)

    def create_bucket(self) -> list[str]:
        """Create the bucket and secure it; return its properties. A bucket that has objects is refused."""
        parts, s3 = self.parts, self._client
        if not self._is_missing() and self.list_tags(""):
            raise Stop(
                f"{_WHERE}: {self.url}: bucket '{parts.bucket}' exists and has objects; its settings were not changed",
                f"choose another name, or use it as it is: `.venv/bin/muster state use '{self.url}'`",
                BAD_INPUT,
            )
        # us-east-1 is the default, which S3 does not accept as a constraint.
        place = {} if parts.region == "us-east-1" else {"LocationConstraint": parts.region}
        with self._explained("create the bucket"):
            if self._is_missing():
                configuration = {"CreateBucketConfiguration": place} if place else {}
                s3.create_bucket(Bucket=parts.bucket, ObjectOwnership="BucketOwnerEnforced", **configuration)
        self.check()
        with self._explained("secure the bucket"):
            s3.put_public_access_block(
                Bucket=parts.bucket,
                PublicAccessBlockConfiguration=dict.fromkeys(
                    ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
                ),
            )
            s3.put_bucket_versioning(Bucket=parts.bucket, VersioningConfiguration={"Status": "Enabled"})
            s3.put_bucket_encryption(Bucket=parts.bucket, ServerSideEncryptionConfiguration=self._encryption())
            s3.put_bucket_lifecycle_configuration(Bucket=parts.bucket, LifecycleConfiguration=_render_lifecycle())
            arn = f"arn:{boto3.Session().get_partition_for_region(parts.region)}:s3:::{parts.bucket}"
            s3.put_bucket_policy(Bucket=parts.bucket, Policy=json.dumps(bucket_policy(arn)))
        return [
            "private",
            "versioned",
            f"encrypted with {f'KMS key {parts.kms}' if parts.kms else 'a key of S3'}",
            "TLS only",
            f"old versions stay {_OLD_VERSION_DAYS} days",
        ]

    def _is_missing(self) -> bool:
        with self._explained("list"):
            try:
                self._client.head_bucket(Bucket=self.parts.bucket)
            except ClientError as refused:
                if refused.response["Error"]["Code"] in _MISSING:
                    return True
                raise
        return False

    def _encryption(self) -> dict[str, Any]:
        default = {"SSEAlgorithm": "AES256"}
        if self.parts.kms:
            default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": self.parts.kms}
        return {
            "Rules": [{"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": bool(self.parts.kms)}],
        }

    def _key(self, key: str) -> str:
        return f"{self.parts.prefix}/{key}" if self.parts.prefix else key

    @cached_property
    def _client(self) -> Any:
        config = Config(
            retries={"mode": "standard", "total_max_attempts": 5},
            connect_timeout=10,
            s3={"addressing_style": "path"} if self._path_style else None,
        )
        with self._explained("open"):
            session = boto3.Session(profile_name=self.parts.profile or None, region_name=self.parts.region)
            return watch_retries(session.client("s3", endpoint_url=self.parts.endpoint or None, config=config))

    @contextmanager
    def _explained(self, action: str, key: str = "") -> Iterator[None]:
        """Turn the errors of AWS's library into messages with the fix."""
        try:
            yield
        except ClientError as refused:
            raise self._explain(refused, f"{action} {key}".strip()) from None
        except (NoCredentialsError, PartialCredentialsError):
            raise Stop(
                f"{_WHERE}: {self.url}: there are no AWS credentials, or they are incomplete",
                "set AWS_PROFILE, or run `aws sso login`",
            ) from None
        except BotoCoreError as failed:
            raise Stop(f"{_WHERE}: {self.url}: {failed}", "check the network, AWS_PROFILE and the URL") from None

    def _explain(self, refused: ClientError, action: str) -> Stop:
        code = str(refused.response["Error"]["Code"])
        where = f"{_WHERE}: {self.url}"
        if code in _MISSING:
            command = f".venv/bin/muster state create '{self.url}'"
            return Stop(f"{where}: bucket '{self.parts.bucket}' does not exist", f"check the name, or `{command}`")
        if code in ("AccessDenied", "403", "Forbidden", "AllAccessDisabled"):
            what = f"{where}: these credentials may not {action} ({code})"
            return Stop(what, f"use others (AWS_PROFILE), or allow them {_RIGHTS}")
        if code in ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
            return Stop(f"{where}: the bucket is in another region than {self.parts.region}", "correct `region`")
        if code == "BucketAlreadyExists":
            return Stop(f"{where}: the name of the bucket is taken by another account", "choose another name")
        if code in ("ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredTokenException"):
            return Stop(f"{where}: the AWS credentials are invalid or have expired ({code})", "renew them")
        return Stop(f"{where}: cannot {action}: {refused}", "check the bucket and the credentials")


def _is_key(text: str, region: str) -> bool:
    arn = _KEY_ARN.fullmatch(text)
    return arn[1] == region if arn else bool(_KEY_NAME.fullmatch(text))


def _render_secrets_provider(parts: S3Url) -> str:
    """Return Pulumi's URL of a key. The colons of an ARN would be read as a port, so that it stands in the path."""
    options = {"region": parts.region} | ({"profile": parts.profile} if parts.profile else {})
    return f"awskms://{'/' if parts.kms.startswith('arn:') else ''}{parts.kms}?{urlencode(options)}"


def _render_lifecycle() -> dict[str, Any]:
    return {
        "Rules": [
            {
                "ID": "old-versions",
                "Status": "Enabled",
                "Filter": {"Prefix": ""},
                "NoncurrentVersionExpiration": {"NoncurrentDays": _OLD_VERSION_DAYS},
            }
        ]
    }
