"""The cluster's secrets as this machine may read them, and what the controller may launch."""

from __future__ import annotations

import base64
import secrets as random
import tempfile
from pathlib import Path

from bootstrap.desired import Secrets
from cluster.inventory import Cloud, Role, parameters
from infra.targets.aws.node import signed


def secrets(region: str, cluster: str, role: Role, ssh_public_key: str) -> Secrets:
    """Only the controller may know the password of its database; elsewhere it is used for nothing."""
    password = _read(region, parameters.db_password(cluster)) if role == "controller" else random.token_hex(8)
    return Secrets(
        slurm_key=base64.b64decode(_read(region, parameters.slurm_key(cluster))),
        db_password=password,
        ssh_public_key=ssh_public_key,
        host_key=_read(region, parameters.host_key(cluster, role)),
    )


def fleet(cloud: Cloud) -> bytes:
    """Too large for a parameter: an object of the cluster's bucket."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / parameters.FLEET
        signed.fetch(cloud.region, cloud.bucket, parameters.FLEET, str(path))
        return path.read_bytes()


def _read(region: str, name: str) -> str:
    found = signed.ssm(region, "GetParameter", Name=name, WithDecryption=True)
    return str(found["Parameter"]["Value"])
