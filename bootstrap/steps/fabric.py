"""Fabric: the environment variables that NCCL and gloo need on this network, so that they do not fall back to TCP.

Jobs also get the variables with which their programs find the cloud's credentials.
"""

from __future__ import annotations

from pathlib import Path

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from cluster.spec import Fabric
from slurm.rdma.ports import LINK_LAYERS, RdmaError, build_environment, select_ports
from slurm.rdma.sysfs import RdmaPort, render_reader

TASK_PROLOG = (Path(__file__).parent.parent / "scripts" / "task-prolog.sh").read_text()

ENVIRONMENT: dict[Fabric, dict[str, str]] = {
    "tcp": {"NCCL_NET": "Socket"},
    # More settings would override the plugin's own tuning. Huge pages break fork in data loaders (aws-ofi-nccl#69).
    "efa": {"NCCL_NET": "Libfabric", "FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"},
}
"""Variables of the fabrics that are the same on all machines; those of RDMA ports depend on the ports."""


def plan_fabric(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the variables, and the task prolog that adds them to each task's environment."""
    credentials = desired.cloud.job_credentials if desired.cloud else None
    variables = list_variables(facts, node) | (credentials.environment if credentials else {})
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    return [
        *write_file(facts, "/etc/muster/fabric.env", lines),
        *write_file(facts, "/etc/muster/task-prolog", TASK_PROLOG, 0o755),
    ]


def list_variables(facts: Facts, node: Node) -> dict[str, str]:
    """Return the variables of the node's fabric; raise BootstrapError if its ports cannot be used."""
    if node.fabric not in LINK_LAYERS:
        return ENVIRONMENT[node.fabric]
    try:
        return build_environment(list_ports(facts, node), node.fabric)
    except RdmaError as error:
        raise _refuse(node, error) from error


def list_ports(facts: Facts, node: Node) -> tuple[RdmaPort, ...]:
    """Return the RDMA ports that jobs use, none if the fabric is another one; raise BootstrapError without any."""
    if node.fabric not in LINK_LAYERS:
        return ()
    try:
        return select_ports(facts.rdma, node.fabric)
    except RdmaError as error:
        raise _refuse(node, error) from error


def print_ports(node: Node, _desired: Desired) -> str:
    """Return shell text that prints the RDMA ports, on nodes whose fabric uses them."""
    return f"{render_reader(gids=True)}read_rdma\n" if node.fabric in LINK_LAYERS else ""


def _refuse(node: Node, error: RdmaError) -> BootstrapError:
    return BootstrapError(node.name, STEP.name, f"fabric {node.fabric}: {error}", fix=error.fix)


STEP = Step("fabric", "NCCL and gloo environment of the network", plan_fabric, readings=print_ports)
