"""The machines of a cluster of hosts as one Pulumi component: a resource for each host that has a role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from bootstrap.transport.host_login import HostLogin
from cluster.inventory import Adopted, Inventory, Node
from infra.plan import BuildPlan, PlannedNode
from infra.targets.hosts.assign import assign_hosts
from infra.targets.hosts.build.host import Host, HostArgs
from infra.targets.hosts.login import dump_login, resolve_login
from infra.targets.hosts.nfs import list_served
from infra.targets.hosts.spec import Hosts
from infra.targets.hosts.switches import place_nodes
from infra.targets.target import Context

_OUTPUTS = ("address", "host_key", "hostname", "machine_id", "cpus", "memory_mb")


class HostsCluster(pulumi.ComponentResource):
    """The hosts of a cluster, by the names that they have in the spec."""

    inventory: pulumi.Output[str]
    """The Inventory as JSON."""
    addresses: pulumi.Output[dict[str, str]]
    """The IPv4 address of each node, by node name."""

    def __init__(self, plan: BuildPlan, section: Hosts, context: Context) -> None:
        super().__init__("muster:hosts:Cluster", plan.cluster, None, pulumi.ResourceOptions(depends_on=[context.guard]))
        options = pulumi.ResourceOptions(parent=self, depends_on=[context.guard])
        assigned = {entry.node: entry.host for entry in assign_hosts(section)}
        logins = {node: resolve_login(section, host) for node, host in assigned.items()}
        served = list_served(context.spec, section)
        machines: dict[str, Host] = {}
        # The others depend on a host that serves files, so that it is given back after they have unmounted them.
        for node in sorted(assigned, key=lambda name: name not in {each.node for each in served}):
            servers = [machines[each.node] for each in served if each.node in machines]
            machines[node] = Host(
                HostArgs(
                    host=assigned[node],
                    node=node,
                    cluster=plan.cluster,
                    stack=context.stack,
                    login=dump_login(logins[node]),
                    ssh_public_key=context.ssh_public_key,
                ),
                pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=servers)),
            )
        inside = {node: section.machines[host].cluster_address or "" for node, host in assigned.items()}
        places = place_nodes(section)
        outputs = pulumi.Output.all(
            **{node: {name: getattr(host, name) for name in _OUTPUTS} for node, host in machines.items()}
        )
        self.inventory = outputs.apply(
            lambda facts: (
                build_inventory(plan, facts, logins, inside, places)
                .model_copy(update={"served": served})
                .model_dump_json()
            )
        )
        self.addresses = outputs.apply(
            lambda facts: {node: inside[node] or machine["address"] for node, machine in facts.items()}
        )
        self.register_outputs({"inventory": self.inventory})


def build_inventory(
    plan: BuildPlan,
    machines: Mapping[str, Mapping[str, Any]],
    logins: Mapping[str, HostLogin],
    inside: Mapping[str, str],
    places: Mapping[str, tuple[str, ...]],
) -> Inventory:
    """Return the inventory of a planned cluster.

    The mappings have, by node, what its machine is, how the operator logs in, the address by which the other nodes
    reach it, if that is another one than SSH from here uses, and the switches above it, where they are known.
    """

    def describe(node: PlannedNode) -> Node:
        machine = machines[node.name]
        return Node(
            name=node.name,
            role=node.role,
            group=node.group,
            address=inside[node.name] or machine["address"],
            ssh_address=machine["address"] if inside[node.name] else "",
            host_key=machine["host_key"],
            machine_id=machine["machine_id"],
            ssh_port=logins[node.name].port,
            # Pulumi passes every number as a float.
            cpus=int(machine["cpus"]),
            memory_mb=int(machine["memory_mb"]),
            gpus=node.gpus,
            fabric=node.fabric,
            place=places.get(node.name, ()),
            adopted=Adopted(hostname=machine["hostname"], user=logins[node.name].user),
        )

    return Inventory(
        cluster=plan.cluster,
        target=plan.target,
        nodes=tuple(map(describe, plan.nodes)),
        mounts=tuple(volume.mount for volume in plan.volumes),
    )
