"""The machines of a local cluster as one Pulumi component: network, volumes, a container per node; their Inventory."""

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


class LocalCluster(pulumi.ComponentResource):
    """Logical names are the spec's own: reordering or resizing a group replaces none of its other nodes."""

    inventory: pulumi.Output[str]
    addresses: pulumi.Output[dict[str, str]]

    def __init__(self, plan: BuildPlan, context: Context) -> None:
        super().__init__("muster:local:Cluster", plan.cluster, None, pulumi.ResourceOptions(depends_on=[context.guard]))
        self._plan, self._context = plan, context
        self._network = self._make_network()
        self._volumes = [self._make_volume(volume.name) for volume in plan.volumes]
        nodes = {node.name: self._make_node(node) for node in plan.nodes}
        made = {
            name: {"address": node.address, "host_key": node.host_key, "machine_id": node.machine_id}
            for name, node in nodes.items()
        }
        self.inventory = pulumi.Output.all(**made).apply(lambda known: inventory(plan, known).model_dump_json())
        self.addresses = self._network.addresses
        self.register_outputs({"inventory": self.inventory})

    def _make_network(self) -> DockerNetwork:
        args = NetworkArgs(
            cluster=self._plan.cluster,
            stack=self._context.stack,
            nodes=[node.name for node in self._plan.nodes],
            egress=self._plan.egress,
            cidr=self._plan.cidr,
            tags=self._context.tags,
        )
        return DockerNetwork("network", args, self._child())

    def _make_volume(self, storage: str) -> DockerVolume:
        args = VolumeArgs(self._plan.cluster, self._context.stack, storage, self._context.tags)
        return DockerVolume(f"volume-{storage}", args, self._child())

    def _make_node(self, node: PlannedNode) -> DockerNode:
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
            mounts=mounts(self._plan, node),
            ssh_public_key=self._context.ssh_public_key,
            tags=self._context.tags,
        )
        return DockerNode(args, self._child(self._network, *self._volumes))

    def _child(self, *after: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._context.guard, *after])


def mounts(plan: BuildPlan, node: PlannedNode) -> list[dict[str, str | bool]]:
    """Every volume, and the cache of training environments inside the first one.

    All clusters share that cache: only the controller, where environments are made, can write to it."""
    own: list[dict[str, str | bool]] = [
        {"volume": names.volume(plan.cluster, v.name), "target": v.mount} for v in plan.volumes
    ]
    cache: dict[str, str | bool] = {"volume": names.ENV_CACHE_VOLUME, "target": f"{plan.volumes[0].mount}/env"}
    return [*own, cache if node.role == "controller" else cache | {"read_only": True}]


def inventory(plan: BuildPlan, made: Mapping[str, Mapping[str, Any]]) -> Inventory:
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
                **made[node.name],
            )
            for node in plan.nodes
        ),
        mounts=tuple(volume.mount for volume in plan.volumes),
        single_host=True,
    )
