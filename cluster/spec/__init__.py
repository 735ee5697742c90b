"""ClusterSpec: the typed description of a cluster."""

from cluster.spec.alerts import Alerts
from cluster.spec.health import Health
from cluster.spec.issue import Issue, SpecError
from cluster.spec.model import (
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
    Software,
    Storage,
    User,
    with_sections,
)
from cluster.spec.slurm_options import Partition, SlurmOptions

__all__ = [
    "Alerts",
    "Budget",
    "Capacity",
    "ClusterSpec",
    "Fabric",
    "Gpus",
    "Health",
    "Issue",
    "Login",
    "Machine",
    "Network",
    "NodeGroup",
    "Partition",
    "Purchase",
    "Size",
    "SlurmOptions",
    "Software",
    "SpecError",
    "Storage",
    "User",
    "with_sections",
]
