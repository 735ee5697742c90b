"""The machines of a local cluster as one Pulumi component: a network, volumes and a container for each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from cluster import names
from cluster.inventory import Inventory, Node
from infra.plan import BuildPlan, PlannedNode
from infra.targets.local.build.docker_network import DockerNetwork, NetworkArgs
from infra.targets.local.build.docker_node import DockerNode, NodeArgs
from infra.targets.local.build.docker_volume import DockerVolume, VolumeArgs
from infra.targets.target import Context

STATE_FOLDERS = {"slurm_queue": "/var/lib/slurm/slurmctld", "slurm_accounting": "/var/lib/mysql"}
"""Folders of the controller that outlive its container, by volume. No storage can have these names: they have a `_`."""


class LocalCluster(pulumi.ComponentResource):
    """The network, volumes and containers of a local cluster.

    Logical names are the names in the spec, so reordering or resizing a group does not replace its other nodes.
    """

    inventory: pulumi.Output[str]
    """The Inventory as JSON."""
    addresses: pulumi.Output[dict[str, str]]
    """The IPv4 address of each node, by node name."""

    def __init__(self, plan: BuildPlan, context: Context) -> None:
        super().__init__("muster:local:Cluster", plan.cluster, None, pulumi.ResourceOptions(depends_on=[context.guard]))
        self._plan, self._context = plan, context
        self._network = self._create_network()
        storage = context.spec.storage
        self._volumes = [self._create_volume(volume.name, storage[volume.name].keep) for volume in plan.volumes]
        self._state_volumes = [self._create_volume(name, keep=False) for name in STATE_FOLDERS]
        nodes = {node.name: self._create_node(node) for node in plan.nodes}
        machine_outputs = {
            name: {"address": node.address, "host_key": node.host_key, "machine_id": node.machine_id}
            for name, node in nodes.items()
        }
        self.inventory = pulumi.Output.all(**machine_outputs).apply(
            lambda machines: build_inventory(plan, machines).model_dump_json()
        )
        self.addresses = self._network.addresses
        self.register_outputs({"inventory": self.inventory})

    def _create_network(self) -> DockerNetwork:
        args = NetworkArgs(
            cluster=self._plan.cluster,
            stack=self._context.stack,
            nodes=[node.name for node in self._plan.nodes],
            egress=self._plan.egress,
            cidr=self._plan.cidr,
            tags=self._context.tags,
        )
        return DockerNetwork("network", args, self._child_options())

    def _create_volume(self, storage: str, keep: bool) -> DockerVolume:
        args = VolumeArgs(self._plan.cluster, self._context.stack, storage, self._context.tags, keep)
        return DockerVolume(f"volume-{storage}", args, self._child_options())

    def _create_node(self, node: PlannedNode) -> DockerNode:
        args = NodeArgs(
            node=node.name,
            cluster=self._plan.cluster,
            stack=self._context.stack,
            role=node.role,
            group=node.group,
            image=self._plan.image,
            cpus=node.cpus,
            memory_mb=node.memory_mb,
            devices=node.gpus.devices,
            ssh_port=node.ssh_port,
            network=names.network(self._plan.cluster),
            network_id=self._network.network_id,
            address=self._network.addresses[node.name],
            mounts=list_mounts(self._plan, node),
            state_mounts=list_state_mounts(self._plan, node),
            ssh_public_key=self._context.ssh_public_key,
            tags=self._context.tags,
        )
        return DockerNode(args, self._child_options(self._network, *self._volumes, *self._state_volumes))

    def _child_options(self, *dependencies: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._context.guard, *dependencies])


def list_mounts(plan: BuildPlan, node: PlannedNode) -> list[dict[str, str | bool]]:
    """Return the mounts of a node: every volume, and the cache of training environments inside the first one.

    All clusters share that cache. Only the controller, which creates the environments, can write to it.
    """
    volumes: list[dict[str, str | bool]] = [
        {"volume": names.volume(plan.cluster, volume.name), "target": volume.mount} for volume in plan.volumes
    ]
    cache: dict[str, str | bool] = {"volume": names.ENV_CACHE_VOLUME, "target": f"{plan.volumes[0].mount}/env"}
    return [*volumes, cache if node.role == "controller" else cache | {"read_only": True}]


def list_state_mounts(plan: BuildPlan, node: PlannedNode) -> list[dict[str, str | bool]]:
    """Return the mounts of the controller's state: a new controller has the queue, job ids and accounts of the last."""
    if node.role != "controller":
        return []
    return [{"volume": names.volume(plan.cluster, name), "target": path} for name, path in STATE_FOLDERS.items()]


def build_inventory(plan: BuildPlan, machines: Mapping[str, Mapping[str, Any]]) -> Inventory:
    """Return the inventory of a planned cluster; `machines` has each node's address, host key and machine id."""
    return Inventory(
        cluster=plan.cluster,
        target=plan.target,
        nodes=tuple(
            Node(
                name=node.name,
                role=node.role,
                group=node.group,
                cpus=node.cpus,
                memory_mb=node.memory_mb,
                gpus=node.gpus,
                fabric=node.fabric,
                **machines[node.name],
            )
            for node in plan.nodes
        ),
        mounts=tuple(volume.mount for volume in plan.volumes),
        single_host=True,
    )
