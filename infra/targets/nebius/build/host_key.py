"""The SSH host key of a node as a Pulumi resource, generated before its instance exists."""

from __future__ import annotations

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from infra.resources import ssh_key
from infra.resources.properties import Properties


class HostKeyProvider(ResourceProvider):
    """The provider of HostKey. Inputs: cluster, node; a node keeps its key as long as it exists."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        key = ssh_key.generate(f"{props['node']}.{props['cluster']}")
        return CreateResult(f"host-key-{props['node']}", props | {"private": key.private, "public": key.public})

    def diff(self, _id: str, _olds: Properties, _news: Properties) -> DiffResult:
        return DiffResult(changes=False)


class HostKey(Resource, module="muster", name="NebiusHostKey"):
    """The key pair by which the first login recognizes an instance."""

    private: pulumi.Output[str]
    public: pulumi.Output[str]

    def __init__(self, name: str, *, cluster: str, node: str, opts: pulumi.ResourceOptions) -> None:
        secret = pulumi.ResourceOptions(additional_secret_outputs=["private"])
        props = {"cluster": cluster, "node": node, "private": None, "public": None}
        super().__init__(HostKeyProvider(), name, props, pulumi.ResourceOptions.merge(opts, secret))
