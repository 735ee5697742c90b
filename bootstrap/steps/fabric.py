"""Fabric: the environment variables that NCCL and gloo need on this network, so that they do not fall back to TCP.

Jobs also get the variables with which their programs find the cloud's credentials.
"""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from cluster.spec import Fabric

TASK_PROLOG = (Path(__file__).parent.parent / "scripts" / "task-prolog.sh").read_text()

ENVIRONMENT: dict[Fabric, dict[str, str]] = {
    "tcp": {"NCCL_NET": "Socket"},
    # More settings would override the plugin's own tuning. Huge pages break fork in data loaders (aws-ofi-nccl#69).
    "efa": {"NCCL_NET": "Libfabric", "FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"},
    "infiniband": {"NCCL_NET": "IB"},
}


def plan_fabric(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the variables, and the task prolog that adds them to each task's environment."""
    credentials = desired.cloud.job_credentials if desired.cloud else None
    variables = ENVIRONMENT[node.fabric] | (credentials.environment if credentials else {})
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    return [
        *write_file(facts, "/etc/muster/fabric.env", lines),
        *write_file(facts, "/etc/muster/task-prolog", TASK_PROLOG, 0o755),
    ]


STEP = Step("fabric", "NCCL and gloo environment of the network", plan_fabric)
