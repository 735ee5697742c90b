"""Read what is not in the bundle: the cluster's secrets, and the fleet that the controller may launch."""

from __future__ import annotations

import base64
import secrets
import tempfile
from pathlib import Path

from bootstrap.desired import Secrets
from cluster.inventory import Role
from infra.targets.aws.node import identity, parameters, signed
from infra.targets.aws.node.cloud import AwsCloud


def read_secrets(cloud: AwsCloud, cluster: str, role: Role, ssh_public_key: str, *, alerts: bool = False) -> Secrets:
    """Read the secrets that this role may read.

    Only the controller may read the database password and, with `alerts`, the webhook. The other roles never use them
    and get a random password.
    """
    controls, region = role == "controller", cloud.region
    password = _read(region, parameters.db_password(cluster)) if controls else secrets.token_hex(8)
    return Secrets(
        slurm_key=base64.b64decode(_read(region, parameters.slurm_key(cluster))),
        db_password=password,
        ssh_public_key=ssh_public_key,
        host_key=_read_host_key(cloud) if role == "compute" else _read(region, parameters.host_key(cluster, role)),
        webhook=_read(region, parameters.webhook(cluster)) if controls and alerts else "",
    )


def read_fleet(cloud: AwsCloud) -> bytes:
    """Read the fleet from the cluster's bucket; it is too large for a parameter."""
    return _fetch(cloud, parameters.FLEET)


def _read_host_key(cloud: AwsCloud) -> str:
    """Read the host key of this compute node; whoever launched the machine stores it shortly after the launch."""
    return _fetch(cloud, parameters.own_host_key(identity.read_arn(cloud.region))).decode()


def _fetch(cloud: AwsCloud, key: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "object"
        signed.fetch(cloud.region, cloud.bucket, key, str(path))
        return path.read_bytes()


def _read(region: str, name: str) -> str:
    answer = signed.ssm(region, "GetParameter", Name=name, WithDecryption=True)
    return str(answer["Parameter"]["Value"])
