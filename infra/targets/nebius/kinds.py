"""The kinds of resources that a cluster has on Nebius: their services in the API, and what can change in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of resource; names of requests follow from that of its message, as everywhere in the API."""

    name: str
    """In messages and receipts."""
    package: str
    message: str
    ready: frozenset[str]
    """States in which it can be used; none if it has no states."""
    updatable: frozenset[str] = frozenset()
    """Fields of the spec that can change in place; any other needs another resource, also if it has drifted."""
    watched: frozenset[str] = frozenset()
    """Fields of the spec that a refresh compares with what exists."""
    optional: frozenset[str] = frozenset()
    """Fields that not every spec has: one that exists without them, or has them in addition, is another resource."""
    timeout_s: float = 600.0

    @property
    def service(self) -> str:
        return f"{self.package}.{self.message}Service"

    def request(self, method: str) -> str:
        """Return the full name of the request of a method."""
        return f"{self.package}.{method}{self.message}{'s' if method == 'List' else ''}Request"


# The API changes none of these: another rule takes the place of one whose content is wrong.
_RULE = frozenset({"access", "protocol", "ingress", "egress"})
_PLACEMENT = frozenset({"gpuCluster", "filesystems", "preemptible", "recoveryPolicy"})
_VPC, _COMPUTE = "nebius.vpc.v1", "nebius.compute.v1"
FILESYSTEM = Kind("filesystem", _COMPUTE, "Filesystem", frozenset({"READY"}), updatable=frozenset({"sizeGibibytes"}))
# In the order of removal: what comes later is used by what comes before it.
_KINDS = (
    # A GPU machine takes many minutes to be found, placed and started.
    Kind("instance", _COMPUTE, "Instance", frozenset({"RUNNING"}), optional=_PLACEMENT, timeout_s=1800.0),
    # Created and deleted with its instance, whose boot disk it is; one that stays costs money.
    Kind("disk", _COMPUTE, "Disk", frozenset({"READY"})),
    Kind("GPU cluster", _COMPUTE, "GpuCluster", frozenset()),
    FILESYSTEM,
    Kind("security rule", _VPC, "SecurityRule", frozenset({"READY"}), watched=_RULE),
    Kind("security group", _VPC, "SecurityGroup", frozenset({"READY"})),
    Kind("subnet", _VPC, "Subnet", frozenset({"READY"})),
    Kind("network", _VPC, "Network", frozenset({"READY"})),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
IMAGE = Kind("image", _COMPUTE, "Image", frozenset({"READY"}))
"""Is not part of a cluster, and only read."""
