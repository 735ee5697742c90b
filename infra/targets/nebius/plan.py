"""The build plan of a cluster on Nebius, and the specs of its resources as the API takes them. Pure functions.

Specs are protobuf's JSON form of the messages `nebius.vpc.v1.*Spec` and `nebius.compute.v1.*Spec`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster import names
from cluster.spec import ClusterSpec, Storage
from infra.plan import BuildPlan, PlannedNode
from infra.targets.nebius.spec import Nebius, NebiusGroup, require_section
from infra.targets.rented.plan import Hardware, plan_machines
from infra.targets.rented.section import machine_of

Spec = dict[str, Any]
# Nebius has no smaller subnets.
SUBNET_MAX_PREFIX = 24
ROOT_GB, CONTROLLER_GB = 200, 100
SSH_PORT = 22


def plan_nebius(spec: ClusterSpec) -> BuildPlan:
    """Return the plan of a valid spec."""
    section = require_section(spec)

    def choose(role: str, group: str | None) -> Hardware:
        machine = machine_of(section, role, group)
        return Hardware(machine.cpus, machine.memory_gb, machine.name)

    return plan_machines(spec, choose)


def subnet_spec(network: Any, cidr: str) -> Spec:
    """Return a subnet with the addresses of a cluster."""
    return {
        "networkId": network,
        "ipv4PrivatePools": {"pools": [{"cidrs": [{"cidr": cidr}]}], "useNetworkPools": False},
        "ipv4PublicPools": {"useNetworkPools": True},
    }


def rule_specs(group: Any, ssh_from: Sequence[str]) -> dict[str, Spec]:
    """Return the rules of a cluster's security group by name; what none of them allows is refused.

    Nodes reach each other and everything outside; from outside, only SSH from some addresses gets in.
    """
    ssh: Spec = {"sourceCidrs": sorted(ssh_from), "destinationPorts": [SSH_PORT]}
    return {
        "ssh": {"access": "ALLOW", "protocol": "TCP", "ingress": ssh},
        "nodes": {"access": "ALLOW", "protocol": "ANY", "ingress": {"sourceSecurityGroupId": group}},
        "out": {"access": "ALLOW", "protocol": "ANY", "egress": {"destinationCidrs": ["0.0.0.0/0"]}},
    }


def filesystem_spec(section: Nebius, storage: Storage) -> Spec:
    """Return a shared filesystem; protobuf's JSON has 64-bit numbers as text."""
    return {"type": section.filesystem_type, "sizeGibibytes": str(storage.size_gb)}


def gpu_cluster_spec(group: NebiusGroup) -> Spec:
    """Return the GPU cluster of a node group: its instances are placed together on one fabric."""
    return {"infinibandFabric": group.fabric}


def instance_spec(
    spec: ClusterSpec, node: PlannedNode, parts: Mapping[str, Any], filesystems: Mapping[str, Any]
) -> Spec:
    """Return the instance of a node.

    `parts` has the ids `subnet`, `security_group` and `gpu_cluster` (or none); `filesystems` the ids of shared
    filesystems by storage. The user data is not in it: a part that is secret would make all of it secret.
    """
    section = require_section(spec)
    machine = machine_of(section, node.role, node.group)
    interface: Spec = {
        "name": "eth0",
        "subnetId": parts["subnet"],
        "ipAddress": {},
        "securityGroups": [{"id": parts["security_group"]}],
    }
    if section.public_addresses:
        # A static address stays when the instance is stopped and started.
        interface["publicIpAddress"] = {"static": True}
    instance: Spec = {
        "resources": {"platform": machine.platform, "preset": machine.preset},
        "networkInterfaces": [interface],
        "bootDisk": {
            "attachMode": "READ_WRITE",
            "managedDisk": {"name": f"{names.container(spec.name, node.name)}-boot", "spec": _disk(spec, node)},
        },
        "filesystems": [
            {"attachMode": "READ_WRITE", "mountTag": name, "existingFilesystem": {"id": id_}}
            for name, id_ in filesystems.items()
        ],
        "hostname": node.name,
        "recoveryPolicy": "RECOVER",
    }
    if parts.get("gpu_cluster") is not None:
        instance["gpuCluster"] = {"id": parts["gpu_cluster"]}
    if isinstance(machine, NebiusGroup) and machine.preemptible:
        instance |= {"preemptible": {"onPreemption": "STOP"}, "recoveryPolicy": "FAIL"}
    return instance


def disk_size_gb(spec: ClusterSpec, node: PlannedNode) -> int:
    """Return the size of a node's boot disk."""
    if node.group is None:
        return CONTROLLER_GB
    return spec.groups[node.group].root_gb or ROOT_GB


def _disk(spec: ClusterSpec, node: PlannedNode) -> Spec:
    section = require_section(spec)
    return {
        "type": section.disk_type,
        "sizeGibibytes": str(disk_size_gb(spec, node)),
        "sourceImageId": section.image,
    }
