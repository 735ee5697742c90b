"""ClusterSpec: what is wanted."""

from infra.spec.issue import Issue, SpecError
from infra.spec.model import (
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
