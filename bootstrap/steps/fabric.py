"""fabric: what NCCL and gloo must be told on this network. Nearly nothing, and no silent fall back to TCP."""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from cluster.spec import Fabric

TASK_PROLOG = (Path(__file__).parent.parent / "scripts" / "task-prolog.sh").read_text()

ENVIRONMENT: dict[Fabric, dict[str, str]] = {
    "tcp": {"NCCL_NET": "Socket"},
    # More would mask the plugin's own tuning. Huge pages break fork in data loaders (aws-ofi-nccl#69).
    "efa": {"NCCL_NET": "Libfabric", "FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"},
    "infiniband": {"NCCL_NET": "IB"},
}


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    lines = "".join(f"{name}={value}\n" for name, value in ENVIRONMENT[node.fabric].items())
    return [
        *write(facts, "/etc/muster/fabric.env", lines),
        *write(facts, "/etc/muster/task-prolog", TASK_PROLOG, 0o755),
    ]


STEP = Step("fabric", "NCCL and gloo environment of the network", actions)
