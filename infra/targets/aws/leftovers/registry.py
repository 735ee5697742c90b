"""Every kind of resource that a cluster can leave on AWS, in the order in which they can be removed."""

from __future__ import annotations

from infra.targets.aws.leftovers import ec2, management, storage
from infra.targets.aws.leftovers.kind import ResourceKind

KINDS: tuple[ResourceKind, ...] = (
    *ec2.MACHINES,
    storage.LUSTRE,
    storage.EFS,
    management.ZONE,
    *ec2.NETWORK,
    management.PARAMETER,
    storage.BUCKET,
    management.LOG_GROUP,
    management.BUDGET,
    management.PROFILE,
    management.ROLE,
    management.POLICY,
    storage.KEY,
)
FILESYSTEMS = (storage.LUSTRE, storage.EFS)
# Filesystems that are kept may depend on these.
FILESYSTEM_DEPENDENCIES = (ec2.SECURITY_GROUP, ec2.SUBNET, ec2.VPC, storage.KEY)
