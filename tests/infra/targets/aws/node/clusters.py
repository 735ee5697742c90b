"""The description of a cluster on AWS, and the facts of a new machine, for tests without machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bootstrap.desired import Desired, Secrets
from bootstrap.facts.model import Disk, Facts
from cluster.inventory import Filesystem, Inventory, Node, NodeSet, Role
from cluster.spec import ClusterSpec
from cluster.spec.model import SlurmRelease, Software
from infra.targets.aws.build.inventory import METADATA_ADDRESSES
from infra.targets.aws.node.cloud import AwsCloud, describe_cloud
from tests.bootstrap.clusters import KEY, ROOT

KERNEL = "6.8.0-1021-aws"
INSTALLER = "# EFA installer version: 1.50.0"
LUSTRE = Filesystem(kind="lustre", mount="/shared", host="fs-01.fsx.us-east-1.amazonaws.com", export="abcdef")
EFS = Filesystem(kind="efs", mount="/users", host="fs-02.efs.us-east-1.amazonaws.com")
NFS = Filesystem(kind="nfs", mount="/archive", host="10.0.0.9", export="/vol")
STORE = Disk("/dev/nvme1n1", "AWS1", "Amazon EC2 NVMe Instance Storage")
ROOT_DISK = Disk("/dev/nvme0n1", "vol0aaa", "Amazon Elastic Block Store")
HOST_KEYS = tuple(f"ssh-ed25519 AAAAgpu{number}" for number in range(1, 5))
SETS = (NodeSet(group="gpu", count=4, static=2, cpus=8, memory_mb=65536, fabric="efa", host_keys=HOST_KEYS),)


def fixed(name: str, role: Role, last: int) -> Node:
    return Node(
        name=name,
        role=role,
        address=f"10.0.0.{last}",
        host_key=f"ssh-ed25519 AAAA{name}",
        machine_id=f"eni-{name}",
        cpus=4,
        memory_mb=16384,
    )


def inventory() -> Inventory:
    nodes = (fixed("controller", "controller", 10), fixed("login", "login", 11))
    return Inventory(cluster="toy", target="aws", nodes=nodes, sets=SETS, metadata_addresses=METADATA_ADDRESSES)


def cloud(*filesystems: Filesystem, **more: Any) -> AwsCloud:
    return describe_cloud(
        region="us-east-1", bucket="bucket", domain="toy.muster.internal", filesystems=filesystems, **more
    )


def desired(*filesystems: Filesystem, fleet: bytes = b"{}", **more: Any) -> Desired:
    spec = {"name": "toy", "target": "aws", "aws": {"region": "us-east-1"}, "groups": {"gpu": {"min": 2, "max": 4}}}
    secrets = Secrets(b"k" * 1024, "password", KEY, "a-private-key\n")
    section = cloud(*filesystems, **more)
    return Desired(inventory(), ClusterSpec.model_validate(spec), secrets, ROOT, cloud=section, fleet=fleet)


def with_release(release: SlurmRelease) -> Desired:
    """Return the desired state of a cluster with this release of Slurm."""
    target = desired()
    return replace(target, spec=target.spec.model_copy(update={"software": Software(slurm=release)}))


def ubuntu(**more: Any) -> Facts:
    """Return the facts of a machine that has just started from AWS's image."""
    base: dict[str, Any] = {
        "distribution": "ubuntu 22.04",
        "kernel": KERNEL,
        "active": frozenset({"ssh", "systemd-resolved"}),
        "mounts": {"/": "ext4"},
        "disks": (ROOT_DISK,),
        "cgroup": "v2",
        "software": {"kernel": KERNEL, "efa_installer": INSTALLER, "efa": "3.3.0g", "libfabric": "libfabric: 2.6.0"},
    }
    return Facts(**base | more)
