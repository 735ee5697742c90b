"""ClusterSpec: what is wanted."""

from cluster.spec.issue import Issue, SpecError
from cluster.spec.model import (
    Aws,
    Budget,
    Capacity,
    ClusterSpec,
    Fabric,
    Gpus,
    Login,
    Machine,
    Network,
    NodeGroup,
    Purchase,
    Size,
    SlurmOptions,
    Software,
    Storage,
    Target,
    User,
)

__all__ = [
    "Aws",
    "Budget",
    "Capacity",
    "ClusterSpec",
    "Fabric",
    "Gpus",
    "Issue",
    "Login",
    "Machine",
    "Network",
    "NodeGroup",
    "Purchase",
    "Size",
    "SlurmOptions",
    "Software",
    "SpecError",
    "Storage",
    "Target",
    "User",
]
