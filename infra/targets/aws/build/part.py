"""One part of a cluster on AWS: a component whose children carry its name, and what all parts need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from cluster.spec import ClusterSpec
from infra.targets.aws import names
from infra.targets.aws.build.resolved import Resolved
from infra.targets.aws.spec import Aws, aws_section


@dataclass(frozen=True)
class Site:
    spec: ClusterSpec
    stack: str
    resolved: Resolved
    parent: pulumi.Resource

    @property
    def cluster(self) -> str:
        return self.spec.name

    @property
    def aws(self) -> Aws:
        section = aws_section(self.spec)
        if section is None:
            raise ValueError("aws: missing. Fix: write `aws: {region: ...}` for target aws")
        return section

    @property
    def tags(self) -> dict[str, str]:
        return names.cluster_tags(self.cluster, self.stack, self.spec.tags)

    def name(self, *parts: str) -> str:
        return names.prefixed(self.cluster, *parts)


class Part(pulumi.ComponentResource):
    """Subclasses make their children with `self.child()` and end with `register_outputs`."""

    def __init__(self, kind: str, site: Site) -> None:
        """`kind` is the class' own name; the logical name is the same in kebab case."""
        self.site = site
        logical = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in kind).lstrip("-")
        super().__init__(f"muster:aws:{kind}", logical, None, pulumi.ResourceOptions(parent=site.parent))

    def child(self, *after: pulumi.Resource, **options: Any) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=list(after), **options)

    def named(self, *parts: str) -> dict[str, str]:
        return names.named(self.site.cluster, *parts)
