"""What is, for `status`: containers from Docker, nodes, queue and daemons from the controller in one SSH call."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import docker
from docker.errors import NotFound

from infra.commands.ssh import TIMEOUT_S, inventory, run
from infra.home import StackHome
from infra.inventory import Inventory
from infra.plan import names
from infra.providers import engine_client

DAEMONS = ("slurmctld", "slurmdbd", "mariadb")
_MARK = "---muster---"
_SCRIPT = f"""
sinfo -h -N -o '%N|%T|%C|%E' 2>&1 | sort -u; echo {_MARK}
squeue -h -o '%i|%j|%u|%P|%T|%M|%D|%R' 2>&1; echo {_MARK}
for unit in {" ".join(DAEMONS)}; do echo "$unit|$(systemctl is-active $unit)"; done
"""


@dataclass(frozen=True)
class Machine:
    """A container as Docker sees it; `state` is Docker's word, or `gone`."""

    state: str
    up_s: float | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class SlurmNode:
    state: str
    cpus: str = ""
    """allocated/idle/other/total, as sinfo writes it."""
    reason: str = ""


@dataclass(frozen=True)
class Job:
    id: str
    name: str
    user: str
    partition: str
    state: str
    time: str
    nodes: str
    where: str


@dataclass(frozen=True)
class Slurm:
    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    daemons: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why the controller could not be asked."""


@dataclass(frozen=True)
class Facts:
    inventory: Inventory
    machines: dict[str, Machine]
    slurm: Slurm


def gather(stack: StackHome) -> Facts:
    known = inventory(stack)
    machines = machines_of(known)
    controller = machines[known.controller.name]
    if controller.state != "running":
        return Facts(known, machines, Slurm(problem=f"the controller's container is {controller.state}"))
    return Facts(known, machines, ask_slurm(stack, known.controller.name))


def machines_of(known: Inventory) -> dict[str, Machine]:
    with engine_client.asking(f"cluster {known.cluster}") as api:
        found = {node.name: _inspected(api, names.container(known.cluster, node.name)) for node in known.nodes}
    now = datetime.now(UTC)
    return {name: _machine(state, now) for name, state in found.items()}


def ask_slurm(stack: StackHome, controller: str) -> Slurm:
    try:
        done = run(stack, controller, _SCRIPT, user="root")
    except subprocess.TimeoutExpired:
        return Slurm(problem=f"the controller did not answer within {TIMEOUT_S:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Slurm(problem=lines[-1] if lines else f"ssh ended with code {done.returncode}")
    return parse(done.stdout)


def parse(text: str) -> Slurm:
    nodes, jobs, daemons = (part.strip().splitlines() for part in text.split(_MARK))
    errors = [line for line in (*nodes, *jobs) if "error" in line and "|" not in line]
    split_jobs = (line.split("|", 7) for line in jobs if line.count("|") >= 7)  # noqa: PLR2004
    split_nodes = (line.split("|", 3) for line in nodes if line.count("|") >= 3)  # noqa: PLR2004
    return Slurm(
        nodes={n: SlurmNode(state, cpus, "" if reason == "none" else reason) for n, state, cpus, reason in split_nodes},
        jobs=tuple(Job(*fields) for fields in split_jobs),
        daemons=dict(line.split("|", 1) for line in daemons if "|" in line),
        problem=errors[0] if errors else "",
    )


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
