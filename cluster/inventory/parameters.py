"""Where engine and machines leave word for each other: names of parameters and objects, and what a report says."""

from __future__ import annotations

from typing import Literal

from cluster.inventory.model import Part, Role

NODE_TAG = "muster.node"
"""The tag that gives a machine its name, and with it its place in the inventory."""
FLEET = "fleet.json"
"""Object beside the bundles: the Fleet, for the controller."""


class Report(Part):
    """What a machine says of itself: the value of its parameter."""

    instance: str
    state: Literal["working", "ready", "failed"]
    step: str = ""
    line: str = ""
    at: str = ""
    bundle: str = ""
    """Digest of the bundle that it applied."""


def root(cluster: str) -> str:
    """Below it lies every parameter of the cluster."""
    return f"/muster/{cluster}"


def nodes(cluster: str) -> str:
    """Below it every node has one parameter, by its name."""
    return f"{root(cluster)}/nodes"


def node(cluster: str, name: str) -> str:
    return f"{nodes(cluster)}/{name}"


def slurm_key(cluster: str) -> str:
    """SecureString: Slurm's authentication key in base64."""
    return f"{root(cluster)}/slurm-key"


def db_password(cluster: str) -> str:
    """SecureString, for the controller alone."""
    return f"{root(cluster)}/db-password"


def host_key(cluster: str, role: Role) -> str:
    """SecureString: the private SSH host key of all machines of a role."""
    return f"{root(cluster)}/host-keys/{role}"


def bundle(sha256: str) -> str:
    """Object key of a bundle."""
    return f"bundle/{sha256}.tar"


def packages(key: str) -> str:
    """Object key of what the controller built for the others."""
    return f"packages/{key}.tar"
