"""The state of a cluster on this machine: containers from Docker, Slurm from the controller over SSH."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import docker
from docker.errors import NotFound

from cluster import names
from cluster.inventory import Inventory
from infra.home import StackHome
from infra.shell import ask_slurm
from infra.targets.facts import Facts, Machine, Slurm
from infra.targets.local import docker_engine as engine_client


def gather(inventory: Inventory, stack: StackHome) -> Facts:
    """Return the state of containers, nodes and queue."""
    machines = _machines(inventory)
    controller = machines[inventory.controller.name]
    if controller.state != "running":
        problem = f"the controller's container is {controller.state}"
        return Facts(inventory, inventory.nodes, machines, Slurm(problem=problem))
    return Facts(inventory, inventory.nodes, machines, ask_slurm(stack, inventory.controller.name))


def _machines(inventory: Inventory) -> dict[str, Machine]:
    with engine_client.api_session(f"cluster {inventory.cluster}") as api:
        states = {n.name: _inspect(api, names.container(inventory.cluster, n.name)) for n in inventory.nodes}
    now = datetime.now(UTC)
    return {name: _machine(state, now) for name, state in states.items()}


def _inspect(api: docker.APIClient, container: str) -> Any:
    try:
        return api.inspect_container(container)
    except NotFound:
        return None


def _machine(container: Any, now: datetime) -> Machine:
    if container is None:
        return Machine("gone", kind="container")
    state = container["State"]
    if state["Status"] != "running":
        return Machine(state["Status"], exit_code=int(state["ExitCode"]), kind="container")
    # Docker writes nanoseconds; datetime reads at most microseconds.
    started = datetime.fromisoformat(state["StartedAt"][:19] + "+00:00")
    return Machine("running", (now - started).total_seconds(), kind="container")
