"""The base of every component of a cluster on AWS, and the provider through which all of them are created."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from cluster.spec import ClusterSpec
from infra.targets.aws import names
from infra.targets.aws.build.resolved import Resolved
from infra.targets.aws.spec import Aws, aws_section

_ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
# With its default of 25 the provider silently retries a launch without capacity for 50 minutes, whatever its timeouts
# are (github.com/hashicorp/terraform-provider-aws/issues/43193, 49863). It counts the first attempt too; waits double:
# 8 attempts took about 200 s (tests/infra/targets/aws/test_provider_retries.py).
MAX_RETRIES = 8


@dataclass(frozen=True)
class Site:
    """The cluster that components are created for: its spec and stack, what AWS knows about it, and their parent."""

    spec: ClusterSpec
    stack: str
    resolved: Resolved
    parent: pulumi.Resource

    @property
    def cluster(self) -> str:
        return self.spec.name

    @property
    def aws(self) -> Aws:
        """The section `aws` of the spec."""
        section = aws_section(self.spec)
        if section is None:
            raise ValueError("aws: missing. Fix: write `aws: {region: ...}` for target aws")
        return section

    @property
    def tags(self) -> dict[str, str]:
        return names.cluster_tags(self.cluster, self.stack, self.spec.tags)

    def name(self, *parts: str) -> str:
        """Return the name in AWS of a resource of this cluster."""
        return names.prefixed(self.cluster, *parts)


class AwsComponent(pulumi.ComponentResource):
    """A group of AWS resources; subclasses pass `child_options()` to them and end with `register_outputs`."""

    def __init__(self, kind: str, site: Site) -> None:
        """Register the component; `kind` is the class name, and the logical name is the same in kebab case."""
        self.site = site
        logical = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in kind).lstrip("-")
        super().__init__(f"muster:aws:{kind}", logical, None, pulumi.ResourceOptions(parent=site.parent))

    def child_options(self, *after: pulumi.Resource, **options: Any) -> pulumi.ResourceOptions:
        """Return the options of a child that is created after `after`."""
        return pulumi.ResourceOptions(parent=self, depends_on=list(after), **options)

    def name_tag(self, *parts: str) -> dict[str, str]:
        """Return the tag that the AWS console shows as the name."""
        return names.name_tag(self.site.cluster, *parts)


def create_provider(spec: ClusterSpec, stack: str, guard: pulumi.Resource) -> aws.Provider:
    """Create the provider with the cluster's region and its tags on everything; it waits for the guard.

    The provider reads AWS_ENDPOINT_URL itself; a test server has no host name per bucket and checks no credentials.
    """
    section = aws_section(spec)
    assert section  # noqa: S101  # validators refuse target aws without it
    test_server = bool(os.environ.get(_ENDPOINT_VARIABLE))
    return aws.Provider(
        "aws",
        region=section.region,
        max_retries=MAX_RETRIES,
        default_tags={"tags": names.cluster_tags(spec.name, stack, spec.tags)},
        s3_use_path_style=test_server or None,
        skip_credentials_validation=test_server or None,
        skip_metadata_api_check=test_server or None,
        skip_region_validation=test_server or None,
        opts=pulumi.ResourceOptions(depends_on=[guard]),
    )
