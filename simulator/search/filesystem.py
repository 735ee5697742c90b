"""How fast a stack's shared filesystem takes a checkpoint."""

from __future__ import annotations

from infra.plan.aws import storage
from infra.spec import ClusterSpec

SHARED = "/shared"
GIB_PER_TIB = 1024
MB_PER_GB = 1000
# EFS takes 1 to 5 GB/s from many clients, depending on the region (unverified; docs.aws.amazon.com/efs/latest/ug/
# performance.html). Nothing is known of a filesystem that exists already. Both count as slow.
UNKNOWN_GB_S = 1.0


def gb_s(spec: ClusterSpec) -> float:
    """Of the filesystem that runs lie on; Lustre's rate grows with its size."""
    shared = next((one for one in spec.storage.values() if one.mount == SHARED), None)
    if shared is None or shared.kind != "fsx-lustre":
        return UNKNOWN_GB_S
    return storage.size(shared) / GIB_PER_TIB * storage.throughput(shared) / MB_PER_GB
