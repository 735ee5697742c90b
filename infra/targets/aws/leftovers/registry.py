"""Every kind of resource that a cluster can leave on AWS, in the order in which they can be removed."""

from __future__ import annotations

from collections.abc import Mapping

from infra.targets.aws.leftovers import ec2, management, storage
from infra.targets.aws.leftovers.kind import ResourceKind

KINDS: tuple[ResourceKind, ...] = (
    *ec2.MACHINES,
    storage.LUSTRE,
    storage.MOUNT_TARGET,
    storage.EFS,
    management.ZONE,
    *ec2.NETWORK,
    management.LIFECYCLE_POLICY,
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

# Kinds with network interfaces, which hold security groups and subnets.
_STORAGE = (storage.LUSTRE, storage.MOUNT_TARGET, storage.EFS)
_ATTACHED = (ec2.INSTANCE, *_STORAGE, ec2.ENDPOINT, ec2.INTERFACE)
USERS: Mapping[ResourceKind, tuple[ResourceKind, ...]] = {
    ec2.PLACEMENT: (ec2.INSTANCE,),
    ec2.VOLUME: (ec2.INSTANCE,),
    ec2.SNAPSHOT: (ec2.IMAGE,),
    ec2.ADDRESS: (ec2.NAT,),
    ec2.INTERFACE: (ec2.INSTANCE, *_STORAGE, ec2.ENDPOINT, ec2.NAT),
    storage.EFS: (storage.MOUNT_TARGET,),
    ec2.SECURITY_GROUP: _ATTACHED,
    ec2.SUBNET: (*_ATTACHED, ec2.NAT),
    # A gateway cannot be detached while the VPC has public addresses.
    ec2.INTERNET_GATEWAY: (ec2.NAT, ec2.ADDRESS),
    ec2.VPC: (
        *_ATTACHED,
        ec2.NAT,
        ec2.SECURITY_GROUP,
        ec2.SUBNET,
        ec2.ROUTE_TABLE,
        ec2.INTERNET_GATEWAY,
    ),
    management.ROLE: (management.PROFILE,),
    management.POLICY: (management.ROLE,),
}
"""By kind, the kinds that AWS must have removed first: while one of them exists, it refuses with an error."""
