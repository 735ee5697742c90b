"""Where engine and machines leave word for each other: names of parameters and objects, and what a report says."""

from __future__ import annotations

from typing import Literal

from infra.inventory.model import Part, Role

NODE_TAG = "muster.node"
"""The tag that gives a machine its name, and with it its place in the inventory."""
FLEET = "fleet.json"
"""Object beside the bundles: the Fleet, for the controller."""

Secret = Literal["slurm-key", "db-password"]


class Report(Part):
    """What a machine says of itself: the value of its parameter."""

    instance: str
    state: Literal["working", "ready", "failed"]
    step: str = ""
    line: str = ""
    at: str = ""
    bundle: str = ""
    """Digest of the bundle that it applied."""


def nodes(cluster: str) -> str:
    """Below it every node has one parameter, by its name."""
    return f"/muster/{cluster}/nodes"


def node(cluster: str, name: str) -> str:
    return f"{nodes(cluster)}/{name}"


def secret(cluster: str, name: Secret) -> str:
    """SecureString: Slurm's key in base64, the password of the accounting database."""
    return f"/muster/{cluster}/secrets/{name}"


def host_key(cluster: str, role: Role) -> str:
    """SecureString: the private SSH host key of all machines of a role."""
    return f"/muster/{cluster}/secrets/host-key-{role}"


def secrets(cluster: str, role: Role) -> dict[str, str]:
    """What a machine of this role may read, by what it is; only the controller has the database."""
    common = {"slurm-key": secret(cluster, "slurm-key"), "host-key": host_key(cluster, role)}
    return common | ({"db-password": secret(cluster, "db-password")} if role == "controller" else {})


def bundle(sha256: str) -> str:
    """Object key of a bundle."""
    return f"bundles/{sha256}.tar"
