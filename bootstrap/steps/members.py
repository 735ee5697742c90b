"""The daemons of login and compute nodes, sackd and slurmd, which fetch Slurm's configuration from the controller."""

from __future__ import annotations

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.daemon import START_TIMEOUT_S, restart, restart_digest, write_key
from bootstrap.steps.step import Step
from cluster.inventory import Node


def plan_login(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    """Start sackd, which authenticates the users of sbatch, squeue and the other commands."""
    options = f'SACKD_OPTIONS="{_conf_server(desired)}"\n'
    return _plan_daemon(facts, desired, "sackd", options, log="journalctl -u sackd")


def plan_compute(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Start slurmd, which runs the jobs."""
    # The host name of a cloud machine may differ from its node name. -b is not passed: a restart of slurmd would then
    # count as a reboot of the node and its jobs would be lost.
    name = f"-N {node.name} " if desired.cloud else ""
    options = f'SLURMD_OPTIONS="{name}{_conf_server(desired)}"\n'
    return _plan_daemon(facts, desired, "slurmd", options, log="/var/log/slurm/slurmd.log")


def _conf_server(desired: Desired) -> str:
    return f"--conf-server {desired.inventory.controller.name}:6817"


def _plan_daemon(facts: Facts, desired: Desired, unit: str, options: str, log: str) -> list[Action]:
    todo = [*write_key(facts, desired), *write_file(facts, f"/etc/default/{unit}", options)]
    running = unit in facts.active and unit in facts.enabled
    if todo or not running or facts.markers.get(unit) != restart_digest(desired, options):
        start = restart(unit, desired, options)
        todo.append(Action(f"start {unit}", start, timeout=START_TIMEOUT_S, log=log))
    return todo


LOGIN_STEP = Step("login", "sackd for sbatch and squeue", plan_login, roles=("login",), units=("sackd",))
COMPUTE_STEP = Step("compute", "slurmd", plan_compute, roles=("compute",), units=("slurmd",))
