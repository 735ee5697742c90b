"""Names of containers, networks, volumes, images, labels and nodes; no other module defines them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

CLUSTER = "muster.cluster"
STACK = "muster.stack"
ROLE = "muster.role"
GROUP = "muster.group"
NODE = "muster.node"
CREATED = "muster.created"
HOME = "muster.home"
HOME_PATH = "muster.home.path"
CACHE = "muster.cache"
ID = "muster.id"
KEEP = "muster.keep"

CONTROLLER = "controller"
LOGIN = "login"

IMAGE = "muster-node:24.11"
"""The node image with the distribution's own Slurm, on which those of other releases are built."""
BASE_IMAGE = "muster-base:trixie"
BAKED_IMAGE = "muster-node-baked"
"""Repository of the images that are built for local nodes."""
ENV_CACHE_VOLUME = "muster-cache-env"


def image(slurm: str) -> str:
    """Return the image of local nodes with this release of Slurm."""
    return f"muster-node:{slurm}"


def member(group: str, number: int) -> str:
    """Return the name of the `number`-th node of a group, counted from 1."""
    return f"{group}-{number}"


def members(group: str, count: int) -> tuple[str, ...]:
    """Return the names of the first `count` nodes of a group."""
    return tuple(member(group, number) for number in range(1, count + 1))


def group_of(node: str) -> str:
    """Return the group of a compute node."""
    return node.rpartition("-")[0]


def number_of(node: str) -> int:
    """Return the number of a compute node in its group, counted from 1."""
    return int(node.rpartition("-")[2])


def container(cluster: str, node: str) -> str:
    """Return the name of a node's container."""
    return f"muster-{cluster}-{node}"


def network(cluster: str) -> str:
    """Return the name of a cluster's network."""
    return f"muster-{cluster}"


def volume(cluster: str, storage: str) -> str:
    """Return the name of the volume of a shared filesystem."""
    return f"muster-{cluster}-{storage}"


def gpu_device(index: int) -> str:
    """Return the character device of a simulated GPU, because Slurm rejects a GRES without a device."""
    return f"/dev/fakegpu{index}"


def labels(cluster: str, stack: str, created: str) -> dict[str, str]:
    """Return the labels of everything that belongs to a cluster; `created` is ISO 8601 in UTC."""
    return {CLUSTER: cluster, STACK: stack, CREATED: created}


def home_labels(home: Path) -> dict[str, str]:
    """Return labels that identify the checkout, because another checkout may have a cluster of the same name."""
    path = str(home.resolve())
    return {HOME: sha256(path.encode()).hexdigest()[:12], HOME_PATH: path}


def node_labels(role: str, node: str, group: str | None) -> dict[str, str]:
    """Return the labels that nodes have in addition to those of `labels`."""
    return {ROLE: role, NODE: node} | ({GROUP: group} if group else {})
