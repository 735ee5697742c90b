"""The AWS provider of a cluster: its region, and its tags on everything; nothing of it happens before the guard."""

from __future__ import annotations

import os

import pulumi
import pulumi_aws as aws

from cluster.spec import ClusterSpec
from infra.targets.aws import names
from infra.targets.aws.spec import aws_section

_ENDPOINT = "AWS_ENDPOINT_URL"
# With its own 25 the provider repeats a launch that finds no capacity for 50 minutes, without a word and whatever its
# timeouts say (github.com/hashicorp/terraform-provider-aws/issues/43193, 49863). Waits double: these are some minutes.
_RETRIES = 8


def provider(spec: ClusterSpec, stack: str, guard: pulumi.Resource) -> aws.Provider:
    """The provider itself asks whatever AWS_ENDPOINT_URL names; a server of one's own has no host name per bucket."""
    section = aws_section(spec)
    assert section  # noqa: S101  # validators refuse target aws without it
    own_server = bool(os.environ.get(_ENDPOINT))
    return aws.Provider(
        "aws",
        region=section.region,
        max_retries=_RETRIES,
        default_tags={"tags": names.cluster_tags(spec.name, stack, spec.tags)},
        s3_use_path_style=own_server or None,
        skip_credentials_validation=own_server or None,
        skip_metadata_api_check=own_server or None,
        skip_region_validation=own_server or None,
        opts=pulumi.ResourceOptions(depends_on=[guard]),
    )
