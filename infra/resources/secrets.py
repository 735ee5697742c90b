"""The secrets of a cluster: its SSH key, Slurm's authentication key and the accounting database's password."""

from __future__ import annotations

import base64
import secrets

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from infra.resources import ssh_key
from infra.resources.properties import Properties, changed
from slurm.config.auth_key import find_next_step, generate_key, take_step

_PASSWORD_BYTES = 24
_PRIVATE = ["ssh_private_key", "slurm_key", "db_password"]


class ClusterSecretsProvider(ResourceProvider):
    """The provider of ClusterSecrets. Inputs: cluster, and the step of a rotation of the Slurm key, or empty."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        key = ssh_key.generate(f"muster {props['cluster']}")
        generated = {
            "ssh_private_key": key.private,
            "ssh_public_key": key.public,
            "slurm_key": base64.b64encode(generate_key()).decode(),
            "db_password": secrets.token_hex(_PASSWORD_BYTES),
        }
        return CreateResult(f"secrets-{props['cluster']}", props | generated)

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("cluster",))
        slurm_key = base64.b64decode(olds["slurm_key"])
        # A step can be taken only once, so that a run that failed after it can be repeated.
        rotates = find_next_step(slurm_key) == news.get("rotation")
        return DiffResult(changes=bool(replaces) or rotates, replaces=replaces)

    def update(self, _id: str, olds: Properties, news: Properties) -> UpdateResult:
        slurm_key = take_step(base64.b64decode(olds["slurm_key"]), news["rotation"])
        same = {name: olds[name] for name in ("ssh_private_key", "ssh_public_key", "db_password")}
        return UpdateResult({**news, **same, "slurm_key": base64.b64encode(slurm_key).decode()})


class ClusterSecrets(Resource, module="muster", name="ClusterSecrets"):
    """The secrets of a cluster, generated when it is created; `rotation` is a step that changes the Slurm key."""

    ssh_private_key: pulumi.Output[str]
    ssh_public_key: pulumi.Output[str]
    slurm_key: pulumi.Output[str]
    """In base64: the content of slurm.key or, while the key is rotated, of slurm.jwks."""
    db_password: pulumi.Output[str]

    def __init__(self, name: str, *, cluster: str, opts: pulumi.ResourceOptions, rotation: str = "") -> None:
        outputs = {"ssh_private_key": None, "ssh_public_key": None, "slurm_key": None, "db_password": None}
        private = pulumi.ResourceOptions(additional_secret_outputs=_PRIVATE)
        merged = pulumi.ResourceOptions.merge(opts, private)
        super().__init__(ClusterSecretsProvider(), name, {"cluster": cluster, "rotation": rotation, **outputs}, merged)
