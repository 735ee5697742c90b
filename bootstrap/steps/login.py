"""login: sackd, which fetches the configuration and vouches for the users of sbatch, squeue and the rest."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.slurm_key import key, restart, restart_digest
from bootstrap.steps.step import Step
from cluster.inventory import Node

START_S = 60.0


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    options = f'SACKD_OPTIONS="--conf-server {desired.inventory.controller.name}:6817"\n'
    todo = [*key(facts, desired), *write(facts, "/etc/default/sackd", options)]
    running = "sackd" in facts.active and "sackd" in facts.enabled
    if todo or not running or facts.markers.get("sackd") != restart_digest(desired, options):
        todo.append(
            Action("start sackd", restart("sackd", desired, options), timeout=START_S, log="journalctl -u sackd")
        )
    return todo


STEP = Step("login", "sackd for sbatch and squeue", actions, roles=("login",))
