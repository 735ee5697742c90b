"""The Inventory of a cluster on AWS: machines that stay by address, groups that are launched by name as sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.inventory import Inventory, Node
from infra.plan.build_plan import BuildPlan


def inventory(plan: BuildPlan, known: Mapping[str, Mapping[str, Any]]) -> Inventory:
    """`known` has address, host_key and machine_id of each machine that stays."""
    return Inventory(
        cluster=plan.cluster,
        target=plan.target,
        nodes=tuple(
            Node(name=node.name, role=node.role, cpus=node.cpus, memory_mb=node.memory_mb, **known[node.name])
            for node in plan.nodes
        ),
        sets=plan.sets,
        mounts=tuple(volume.mount for volume in plan.volumes),
    )
