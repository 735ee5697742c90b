"""Facts of a cluster on this machine: containers from Docker, Slurm from the controller over SSH."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from typing import Any

import docker
from docker.errors import NotFound

from cluster import names
from cluster.inventory import Inventory
from infra.home import StackHome
from infra.shell import TIMEOUT_S, run
from infra.targets.facts import SCRIPT, Facts, Machine, Slurm, parse
from infra.targets.local import docker_engine as engine_client


def gather(known: Inventory, stack: StackHome) -> Facts:
    machines = _machines(known)
    controller = machines[known.controller.name]
    if controller.state != "running":
        problem = f"the controller's container is {controller.state}"
        return Facts(known, known.nodes, machines, Slurm(problem=problem))
    return Facts(known, known.nodes, machines, _ask_slurm(stack, known.controller.name))


def _machines(known: Inventory) -> dict[str, Machine]:
    with engine_client.asking(f"cluster {known.cluster}") as api:
        found = {node.name: _inspected(api, names.container(known.cluster, node.name)) for node in known.nodes}
    now = datetime.now(UTC)
    return {name: _machine(state, now) for name, state in found.items()}


def _ask_slurm(stack: StackHome, controller: str) -> Slurm:
    try:
        done = run(stack, controller, SCRIPT, user="root")
    except subprocess.TimeoutExpired:
        return Slurm(problem=f"the controller did not answer within {TIMEOUT_S:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Slurm(problem=lines[-1] if lines else f"ssh ended with code {done.returncode}")
    return parse(done.stdout)


def _inspected(api: docker.APIClient, container: str) -> Any:
    try:
        return api.inspect_container(container)
    except NotFound:
        return None


def _machine(found: Any, now: datetime) -> Machine:
    if found is None:
        return Machine("gone")
    state = found["State"]
    if state["Status"] != "running":
        return Machine(state["Status"], exit_code=int(state["ExitCode"]))
    # Docker writes nanoseconds; datetime reads at most microseconds.
    started = datetime.fromisoformat(state["StartedAt"][:19] + "+00:00")
    return Machine("running", (now - started).total_seconds())
