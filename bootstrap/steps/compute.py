"""compute: slurmd, which needs the key and the controller's name and fetches the rest."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.slurm_key import key, restart, restart_digest
from bootstrap.steps.step import Step
from cluster.inventory import Node

START_S = 60.0


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    # A machine that was given its name may still have another host name. Without -b, by which every restart of slurmd
    # would count as a reboot, and its jobs be lost.
    name = f"-N {node.name} " if desired.cloud else ""
    options = f'SLURMD_OPTIONS="{name}--conf-server {desired.inventory.controller.name}:6817"\n'
    todo = [*key(facts, desired), *write(facts, "/etc/default/slurmd", options)]
    running = "slurmd" in facts.active and "slurmd" in facts.enabled
    if todo or not running or facts.markers.get("slurmd") != restart_digest(desired, options):
        todo.append(
            Action(
                "start slurmd", restart("slurmd", desired, options), timeout=START_S, log="/var/log/slurm/slurmd.log"
            )
        )
    return todo


STEP = Step("compute", "slurmd", actions, roles=("compute",))
