"""Interruption: before the cloud takes a compute node back, its jobs are saved or requeued."""

from __future__ import annotations

import shlex

from bootstrap.action import Action, enable_unit, reload_units, write_file
from bootstrap.bundle import INSTALLED, INSTALLED_PYTHON
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

NAME = "muster-interruption"
PROGRAM = "/etc/muster/interruption"
SCRIPT = """\
#!/bin/sh
set -eu
cd {root}
notice=$({watch})
[ -n "$notice" ] || exit 0
exec {python} -m slurm.power.interruption {node} "$notice"
"""
UNIT = f"""\
[Unit]
Description=muster: empty this node before the cloud takes it back
After=network-online.target

[Service]
ExecStart={PROGRAM}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""


def plan_interruption(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Start a service that waits for the cloud's notice; it ends by itself on machines that are never taken back."""
    watch = shlex.join(desired.cloud.interruption_watch if desired.cloud else ())
    script = SCRIPT.format(root=INSTALLED, watch=watch, python=INSTALLED_PYTHON, node=shlex.quote(node.name))
    todo = [
        *write_file(facts, PROGRAM, script, 0o755),
        *write_file(facts, f"/etc/systemd/system/{NAME}.service", UNIT),
    ]
    if todo or NAME not in facts.enabled:
        start = f"{enable_unit(NAME)}\n{reload_units(facts, f'{NAME}.service')}systemctl restart {NAME}"
        todo.append(Action(f"enable {NAME}", start))
    return todo


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clouds that announce nothing."""
    return "" if desired.cloud and desired.cloud.interruption_watch else "the cloud announces nothing"


STEP = Step(
    "interruption",
    "jobs saved before the cloud takes the machine back",
    plan_interruption,
    roles=("compute",),
    skip=skip,
    units=(NAME,),
)
