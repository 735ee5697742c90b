"""SSH host keys, made before the machines that use them, so that the first login already knows whom it talks to."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from infra.resources import ssh_key
from infra.resources.properties import Properties


class HostKeysProvider(ResourceProvider):
    """Inputs: cluster, roles. A role that comes later gets a key; those that have one keep it."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        return CreateResult(f"host-keys-{props['cluster']}", props | _keys(props, {}))

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        return DiffResult(changes=bool(set(news["roles"]) - set(olds.get("public") or {})))

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        return UpdateResult(news | _keys(news, olds))


class HostKeys(Resource, module="muster", name="AwsHostKeys"):
    private: pulumi.Output[dict[str, str]]
    public: pulumi.Output[dict[str, str]]

    def __init__(self, name: str, *, cluster: str, roles: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        secret = pulumi.ResourceOptions(additional_secret_outputs=["private"])
        props = {"cluster": cluster, "roles": list(roles), "private": None, "public": None}
        super().__init__(HostKeysProvider(), name, props, pulumi.ResourceOptions.merge(opts, secret))


def _keys(props: Properties, olds: Properties) -> Properties:
    private, public = dict(olds.get("private") or {}), dict(olds.get("public") or {})
    for role in props["roles"]:
        if role not in public:
            made = ssh_key.generate(f"{role}.{props['cluster']}")
            private[role], public[role] = made.private, made.public
    return {"private": private, "public": public}
