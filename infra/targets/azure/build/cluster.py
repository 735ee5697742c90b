"""The machines of a cluster on Azure as one Pulumi component: group, network, filesystems, machines, scale sets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pulumi

from cluster import names
from infra.home import Home
from infra.plan import BuildPlan, PlannedNode
from infra.targets.azure import bodies
from infra.targets.azure.bodies import Body
from infra.targets.azure.build.machine_key import MachineKey, MachineKeyArgs
from infra.targets.azure.build.resource import CloudResource, ResourceArgs
from infra.targets.azure.build.scale_set import ScaleSet
from infra.targets.azure.kinds import GROUP, KINDS
from infra.targets.azure.plan import group_id, list_served, resource_id
from infra.targets.azure.spec import SECTION, require_section
from infra.targets.azure.user_data import render_user_data
from infra.targets.rented.boot import Boot, BootArgs
from infra.targets.rented.inventory import build_inventory
from infra.targets.rented.owner import owner_labels
from infra.targets.target import Context


class AzureCluster(pulumi.ComponentResource):
    """Everything that a cluster has on Azure, named after the spec."""

    inventory: pulumi.Output[str]
    """The Inventory as JSON."""
    addresses: pulumi.Output[dict[str, str]]
    """The IPv4 address of each node, by node name."""

    def __init__(self, plan: BuildPlan, context: Context) -> None:
        super().__init__("muster:azure:Cluster", plan.cluster, None, pulumi.ResourceOptions(depends_on=[context.guard]))
        self._plan, self._context, self._spec = plan, context, context.spec
        self._section = require_section(context.spec)
        self._labels = owner_labels(plan.cluster, context.stack, Home.of(os.environ).root, context.tags)
        self._name = names.network(plan.cluster)
        self._network = self._create_network()
        self._filesystems = self._create_filesystems()
        mounts = [context.spec.storage[name].mount for name in self._filesystems]
        servers = [filesystem.address for filesystem in self._filesystems.values()]
        self._user_data = pulumi.Output.all(context.ssh_public_key, *servers).apply(
            lambda parts: render_user_data(parts[0], dict(zip(mounts, parts[1:], strict=True)))
        )
        machines = {node.name: self._create_machine(node) for node in plan.nodes if node.group is None}
        for group in context.spec.groups:
            machines |= self._create_group(group, [node for node in plan.nodes if node.group == group])
        described = {node.name: self._boot(node, machines[node.name]) for node in plan.nodes}
        served, public = list_served(context.spec), self._section.public_addresses
        self.inventory = pulumi.Output.all(**described).apply(
            lambda outputs: build_inventory(plan, outputs, public=public, served=served).model_dump_json()
        )
        self.addresses = pulumi.Output.all(**described).apply(
            lambda outputs: {node: machine["address"] for node, machine in outputs.items()}
        )
        self.register_outputs({"inventory": self.inventory})

    def _create_network(self) -> CloudResource:
        """Return the network with its subnets, which depends on the group and on what guards the subnets."""
        where = f"{SECTION}.region"
        args = ResourceArgs(
            GROUP.name,
            group_id(self._spec),
            self._section.subscription,
            self._section.region,
            self._labels,
            {},
            f"{SECTION}.subscription",
        )
        self._group = CloudResource("group", args, self._options())
        cidr = self._plan.cidr or ""
        rules = bodies.security_group_body(self._section, cidr)
        guard = self._create("security group", self._name, rules, f"{SECTION}.ssh_from")
        address = self._create_address(f"{self._name}-nat")
        body = bodies.nat_gateway_body(self._id("public address", f"{self._name}-nat"))
        gateway = self._create("NAT gateway", self._name, body, where, [address])
        network = bodies.network_body(self._spec, cidr)
        return self._create("network", self._name, network, "network.cidr", [guard, gateway])

    def _create_filesystems(self) -> Mapping[str, CloudResource]:
        created = {}
        for name, storage in self._spec.storage.items():
            if storage.kind == "volume":
                body, full_name = bodies.filesystem_body(self._spec, storage), names.volume(self._plan.cluster, name)
                labels = {names.KEEP: "true"} if storage.keep else {}
                args = self._args("filesystem", full_name, body, f"storage.{name}", labels)
                options = pulumi.ResourceOptions(protect=storage.keep)
                options = pulumi.ResourceOptions.merge(self._options(self._network), options)
                created[name] = CloudResource(f"filesystem-{name}", args, options)
        return created

    def _create_machine(self, node: PlannedNode) -> Mapping[str, Any]:
        """Declare a machine that is in no scale set; return what the inventory needs to know about it."""
        name, where = names.container(self._plan.cluster, node.name), f"{SECTION}.{node.role}"
        after: list[pulumi.Resource] = [self._network]
        public: pulumi.Input[str] = ""
        address_id = None
        if self._section.public_addresses:
            address = self._create_address(name)
            address_id, public = self._id("public address", name), address.address
            after.append(address)
        body = bodies.interface_body(self._spec, address_id)
        interface = self._create("network interface", name, body, where, after)
        described = bodies.machine_body(self._spec, node, self._id("network interface", name))
        labels = names.node_labels(node.role, node.name, node.group)
        args = self._machine_args(self._args("machine", name, described, where, labels), node.name)
        machine = CloudResource(node.name, args, self._options(interface, *self._filesystems.values()))
        addresses = {"address": interface.address, "public_address": public}
        return {"arm_id": machine.id, "machine_id": machine.machine_id, **addresses}

    def _create_group(self, group: str, nodes: Sequence[PlannedNode]) -> Mapping[str, Any]:
        """Declare the scale set of a node group; return for each node what the inventory needs to know about it."""
        if not nodes:
            return {}
        body = bodies.scale_set_body(self._spec, group, nodes)
        labels = {names.GROUP: group, names.ROLE: "compute"}
        name, where = names.volume(self._plan.cluster, group), f"{SECTION}.groups.{group}"
        args = self._machine_args(self._args("scale set", name, body, where, labels))
        options = self._options(self._network, *self._filesystems.values())
        machines = ScaleSet(f"scale-set-{group}", args, [node.name for node in nodes], options).machines

        def read(node: str, key: str) -> pulumi.Output[str]:
            return machines.apply(lambda outputs: outputs[node][key])

        keys = ("arm_id", "machine_id", "address", "public_address")
        return {node.name: {key: read(node.name, key) for key in keys} for node in nodes}

    def _boot(self, node: PlannedNode, machine: Mapping[str, Any]) -> pulumi.Output[dict[str, Any]]:
        """Declare the first boot of a machine; return what the inventory needs to know about it."""
        where = f"{SECTION}.groups.{node.group}" if node.group else f"{SECTION}.{node.role}"
        args = MachineKeyArgs(node.name, machine["machine_id"], machine["arm_id"], where)
        key = MachineKey(f"host-key-{node.name}", args, self._options())
        boot = Boot(
            f"boot-{node.name}",
            BootArgs(
                section=SECTION,
                node=node.name,
                machine=machine["machine_id"],
                address=machine["public_address"] if self._section.public_addresses else machine["address"],
                host_key=key.public,
                ssh_private_key=self._context.secrets.ssh_private_key,
                mounts=sorted(self._spec.storage[name].mount for name in self._filesystems),
                spec=self._spec.model_dump_json(),
                role=node.role,
                group=node.group,
            ),
            self._options(),
        )
        return pulumi.Output.all(
            address=machine["address"],
            public_address=machine["public_address"],
            host_key=key.public,
            machine_id=machine["machine_id"],
            cpus=boot.cpus,
            memory_mb=boot.memory_mb,
        )

    def _create_address(self, name: str) -> CloudResource:
        body, where = bodies.public_address_body(), f"{SECTION}.public_addresses"
        return self._create("public address", name, body, where)

    def _create(
        self, kind: str, name: str, body: Body, where: str, after: Sequence[pulumi.Resource] = ()
    ) -> CloudResource:
        args, options = self._args(kind, name, body, where), self._options(self._group, *after)
        return CloudResource(f"{kind.replace(' ', '-')}-{name}", args, options)

    def _args(
        self, kind: str, name: str, body: Body, where: str, labels: Mapping[str, str] | None = None
    ) -> ResourceArgs:
        section, tags = self._section, {**self._labels, **(labels or {})}
        return ResourceArgs(kind, self._id(kind, name), section.subscription, section.region, tags, body, where)

    def _machine_args(self, args: ResourceArgs, node: str = "") -> ResourceArgs:
        return replace(args, node=node, user_data=self._user_data, ssh_public_key=self._context.ssh_public_key)

    def _id(self, kind: str, name: str) -> str:
        return resource_id(self._spec, KINDS[kind].type, name)

    def _options(self, *dependencies: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=[self._context.guard, *dependencies])
