"""The inventory of machines that were rented for a cluster. A pure function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.inventory import Inventory, Node, ServedFilesystem
from infra.plan import BuildPlan, PlannedNode
from infra.targets.rented.user_data import METADATA_ADDRESSES


def build_inventory(
    plan: BuildPlan,
    machines: Mapping[str, Mapping[str, Any]],
    *,
    public: bool,
    served: tuple[ServedFilesystem, ...] = (),
) -> Inventory:
    """Return the inventory of a planned cluster; `machines` has by node what its machine is.

    With `public`, SSH from here uses the public address of a machine.
    """

    def describe(node: PlannedNode) -> Node:
        machine = machines[node.name]
        return Node(
            name=node.name,
            role=node.role,
            group=node.group,
            address=machine["address"],
            ssh_address=machine["public_address"] if public else "",
            host_key=machine["host_key"],
            machine_id=machine["machine_id"],
            # Pulumi passes every number as a float.
            cpus=int(machine["cpus"]),
            memory_mb=int(machine["memory_mb"]),
            gpus=node.gpus,
            fabric=node.fabric,
            place=tuple(machine.get("path") or ()) if node.role == "compute" else (),
        )

    return Inventory(
        cluster=plan.cluster,
        target=plan.target,
        nodes=tuple(map(describe, plan.nodes)),
        mounts=tuple(volume.mount for volume in plan.volumes),
        served=served,
        metadata_addresses=METADATA_ADDRESSES,
    )
