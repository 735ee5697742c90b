"""ClusterSpec: what is wanted."""

from infra.spec.issue import Issue, SpecError
from infra.spec.model import (
    Budget,
    ClusterSpec,
    Fabric,
    Gpus,
    Login,
    Machine,
    Network,
    NodeGroup,
    Size,
    SlurmOptions,
    Software,
    Storage,
    Target,
    User,
)

__all__ = [
    "Budget",
    "ClusterSpec",
    "Fabric",
    "Gpus",
    "Issue",
    "Login",
    "Machine",
    "Network",
    "NodeGroup",
    "Size",
    "SlurmOptions",
    "Software",
    "SpecError",
    "Storage",
    "Target",
    "User",
]
