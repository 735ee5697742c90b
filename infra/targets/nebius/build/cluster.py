"""The machines of a cluster on Nebius as one Pulumi component: network, security, filesystems, GPU clusters, nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pulumi

from cluster import names
from infra.home import Home
from infra.plan import BuildPlan, PlannedNode
from infra.targets.nebius.build.host_key import HostKey
from infra.targets.nebius.build.resource import CloudResource, ResourceArgs
from infra.targets.nebius.plan import (
    filesystem_spec,
    gpu_cluster_spec,
    instance_spec,
    rule_specs,
    subnet_spec,
)
from infra.targets.nebius.spec import SECTION, require_section
from infra.targets.nebius.user_data import render_user_data
from infra.targets.rented.boot import Boot, BootArgs
from infra.targets.rented.inventory import build_inventory
from infra.targets.rented.owner import owner_labels
from infra.targets.target import Context


class NebiusCluster(pulumi.ComponentResource):
    """Everything that a cluster has on Nebius, named after the spec."""

    inventory: pulumi.Output[str]
    """The Inventory as JSON."""
    addresses: pulumi.Output[dict[str, str]]
    """The IPv4 address of each node, by node name."""

    def __init__(self, plan: BuildPlan, context: Context) -> None:
        super().__init__(
            "muster:nebius:Cluster", plan.cluster, None, pulumi.ResourceOptions(depends_on=[context.guard])
        )
        self._plan, self._context = plan, context
        self._section = require_section(context.spec)
        home = Home.of(os.environ).root
        self._labels = owner_labels(plan.cluster, context.stack, home, context.tags)
        self._create_network()
        self._filesystems = self._create_filesystems()
        self._gpu_clusters = self._create_gpu_clusters()
        machines = {node.name: self._create_node(node) for node in plan.nodes}
        self.inventory = pulumi.Output.all(**machines).apply(
            lambda outputs: build_inventory(plan, outputs, public=self._section.public_addresses).model_dump_json()
        )
        self.addresses = pulumi.Output.all(**machines).apply(
            lambda outputs: {node: machine["address"] for node, machine in outputs.items()}
        )
        self.register_outputs({"inventory": self.inventory})

    def _create_network(self) -> None:
        name, cidr = names.network(self._plan.cluster), self._plan.cidr or ""
        args = self._args("network", name, {}, "network")
        self._network = self._create("network", args)
        args = self._args("subnet", name, subnet_spec(self._network.id, cidr), "network.cidr")
        self._subnet = self._create("subnet", args)
        args = self._args("security group", name, {"networkId": self._network.id}, "nebius.ssh_from")
        self._group = self._create("security-group", args)
        rules = rule_specs(self._group.id, self._section.ssh_from)
        self._rules = [self._create_rule(f"{name}-{rule}", f"rule-{rule}", spec) for rule, spec in rules.items()]

    def _create_rule(self, name: str, logical_name: str, spec: Mapping[str, Any]) -> CloudResource:
        args = self._args("security rule", name, spec, "nebius.ssh_from")
        return self._create(logical_name, replace(args, parent=self._group.id))

    def _create_filesystems(self) -> Mapping[str, pulumi.Output[str] | str]:
        """Return the ids of the shared filesystems by storage; those that exist already are only attached."""
        ids: dict[str, pulumi.Output[str] | str] = {}
        for name, storage in self._context.spec.storage.items():
            if storage.kind == "existing":
                ids[name] = storage.id or ""
                continue
            spec, full_name = filesystem_spec(self._section, storage), names.volume(self._plan.cluster, name)
            args = self._args("filesystem", full_name, spec, f"storage.{name}")
            if storage.keep:
                args = replace(args, labels={**args.labels, names.KEEP: "true"})
            ids[name] = self._create(f"filesystem-{name}", args, protect=storage.keep).id
        return ids

    def _create_gpu_clusters(self) -> Mapping[str, CloudResource]:
        """Return the GPU cluster of each group that has a fabric."""
        created = {}
        for name, group in self._section.groups.items():
            if group.fabric is not None:
                full_name = names.volume(self._plan.cluster, name)
                args = self._args("GPU cluster", full_name, gpu_cluster_spec(group), f"nebius.groups.{name}.fabric")
                created[name] = self._create(f"fabric-{name}", args)
        return created

    def _create_node(self, node: PlannedNode) -> pulumi.Output[dict[str, Any]]:
        """Declare the instance of a node; return what the inventory needs to know about it."""
        spec, cluster = self._context.spec, self._plan.cluster
        key = HostKey(f"host-key-{node.name}", cluster=cluster, node=node.name, opts=self._options())
        mounts = {name: storage.mount for name, storage in spec.storage.items()}
        user_data = pulumi.Output.all(key.private, key.public, self._context.ssh_public_key).apply(
            lambda keys: render_user_data(node.name, {"private": keys[0], "public": keys[1]}, keys[2], mounts)
        )
        gpu_cluster = self._gpu_clusters.get(node.group or "")
        parts = {
            "subnet": self._subnet.id,
            "security_group": self._group.id,
            "gpu_cluster": gpu_cluster.id if gpu_cluster else None,
        }
        where = f"nebius.groups.{node.group}" if node.group else f"nebius.{node.role}"
        described = instance_spec(spec, node, parts, self._filesystems)
        args = self._args("instance", names.container(cluster, node.name), described, where)
        labels = {**args.labels, **names.node_labels(node.role, node.name, node.group)}
        instance = self._create(node.name, replace(args, labels=labels, node=node.name, user_data=user_data))
        for_ssh = instance.public_address if self._section.public_addresses else instance.address
        boot = Boot(
            f"boot-{node.name}",
            BootArgs(
                section=SECTION,
                node=node.name,
                machine=instance.id,
                address=for_ssh,
                host_key=key.public,
                ssh_private_key=self._context.secrets.ssh_private_key,
                mounts=sorted(mounts.values()),
                spec=spec.model_dump_json(),
                role=node.role,
                group=node.group,
            ),
            self._options(instance, *self._rules),
        )
        return pulumi.Output.all(
            address=instance.address,
            public_address=instance.public_address,
            host_key=key.public,
            machine_id=instance.id,
            path=instance.path,
            cpus=boot.cpus,
            memory_mb=boot.memory_mb,
        )

    def _args(self, kind: str, name: str, spec: Mapping[str, Any], where: str) -> ResourceArgs:
        return ResourceArgs(kind, self._section.project, name, self._labels, spec, where)

    def _create(self, logical_name: str, args: ResourceArgs, *, protect: bool = False) -> CloudResource:
        opts = pulumi.ResourceOptions.merge(self._options(), pulumi.ResourceOptions(protect=protect))
        return CloudResource(logical_name, args, opts)

    def _options(self, *dependencies: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._context.guard, *dependencies])
