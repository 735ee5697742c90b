"""ClusterSpec: what is wanted."""

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
    User,
)

__all__ = [
    "Budget",
    "ClusterSpec",
    "Fabric",
    "Gpus",
    "Login",
    "Machine",
    "Network",
    "NodeGroup",
    "Size",
    "SlurmOptions",
    "Software",
    "Storage",
    "User",
]
