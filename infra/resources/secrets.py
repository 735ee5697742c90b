"""The secrets of a cluster: its SSH key, Slurm's authentication key and the accounting database's password."""

from __future__ import annotations

import base64
import secrets

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider

from infra.resources import ssh_key
from infra.resources.properties import Properties, changed

_SLURM_KEY_BYTES = 1024
_PASSWORD_BYTES = 24
_PRIVATE = ["ssh_private_key", "slurm_key", "db_password"]


class ClusterSecretsProvider(ResourceProvider):
    """The provider of ClusterSecrets. Inputs: cluster."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        key = ssh_key.generate(f"muster {props['cluster']}")
        generated = {
            "ssh_private_key": key.private,
            "ssh_public_key": key.public,
            "slurm_key": base64.b64encode(secrets.token_bytes(_SLURM_KEY_BYTES)).decode(),
            "db_password": secrets.token_hex(_PASSWORD_BYTES),
        }
        return CreateResult(f"secrets-{props['cluster']}", props | generated)

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("cluster",))
        return DiffResult(changes=bool(replaces), replaces=replaces)


class ClusterSecrets(Resource, module="muster", name="ClusterSecrets"):
    """The secrets of a cluster, generated when it is created."""

    ssh_private_key: pulumi.Output[str]
    ssh_public_key: pulumi.Output[str]
    slurm_key: pulumi.Output[str]
    db_password: pulumi.Output[str]

    def __init__(self, name: str, *, cluster: str, opts: pulumi.ResourceOptions) -> None:
        outputs = {"ssh_private_key": None, "ssh_public_key": None, "slurm_key": None, "db_password": None}
        private = pulumi.ResourceOptions(additional_secret_outputs=_PRIVATE)
        merged = pulumi.ResourceOptions.merge(opts, private)
        super().__init__(ClusterSecretsProvider(), name, {"cluster": cluster, **outputs}, merged)
