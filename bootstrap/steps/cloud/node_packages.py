"""Packages for other machines: the controller downloads those of the distribution, so that nobody else needs lists.

It does so again every day, for security updates.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import FETCH_LISTS, Action, reload_units, write_file
from bootstrap.bundle import INSTALLED
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.package_archive import NAME
from bootstrap.steps import packages
from bootstrap.steps.cloud import lustre_client, slurm_packages
from bootstrap.steps.step import Step
from cluster.inventory import Node, Role

UNIT = "muster-node-packages"
SCRIPT = (Path(__file__).parents[2] / "scripts" / "node-packages.sh").read_text()
PROGRAM = "/etc/muster/node-packages"
WORK = "/var/cache/muster-node-packages"
ROLES: tuple[Role, ...] = ("login", "compute")
"""Roles of the machines that use the archive."""
INTERVAL_S = 24 * 3600
SERVICE = f"""\
[Unit]
Description=Download packages for new nodes
After=network-online.target

[Service]
Type=oneshot
Nice=10
WorkingDirectory={INSTALLED}
ExecStart={PROGRAM}
Restart=on-failure
RestartSec=600
"""
TIMER = f"""\
[Unit]
Description=Download packages for new nodes every day

[Timer]
OnActiveSec=0
OnUnitInactiveSec={INTERVAL_S}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


def plan_node_packages(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the program that makes the archive, and start its timer, which runs it at once."""
    units = {f"{UNIT}.service": SERVICE, f"{UNIT}.timer": TIMER}
    todo = write_file(facts, PROGRAM, _render_program(facts, desired), 0o755)
    for name, text in units.items():
        todo += write_file(facts, f"/etc/systemd/system/{name}", text)
    if todo or f"{UNIT}.timer" not in facts.active:
        script = f"{reload_units(facts, *units)}systemctl enable -q {UNIT}.timer\nsystemctl restart {UNIT}.timer"
        todo.append(Action(f"start {UNIT}", script, log=f"journalctl -u {UNIT}"))
    return todo


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip clouds without a store, and clusters whose machines read package lists anyway."""
    if not (desired.cloud and desired.cloud.package_store):
        return "this cloud cannot store packages"
    lustre = not lustre_client.skip(facts, node, desired)
    return "machines need package lists to find a Lustre client" if lustre else ""


def _render_program(facts: Facts, desired: Desired) -> str:
    release = desired.spec.software.slurm
    built = slurm_packages.needs_build(facts, release)
    values = {
        "NAMES": " ".join(packages.list_of_roles(facts, ROLES, desired)),
        "SLURM": slurm_packages.locate_archive(facts, release) if built else "",
        "MEMBERS": " ".join(f"*/{name}_*.deb" for name in slurm_packages.list_names(ROLES)),
        "WORK": WORK,
        "FETCH_LISTS": FETCH_LISTS,
        "STORE": " ".join(desired.cloud.package_store if desired.cloud else ()),
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return f"#!/bin/sh\n{assignments}NAME={NAME}\n{SCRIPT}"


STEP = Step(
    "node-packages",
    "packages for new nodes",
    plan_node_packages,
    roles=("controller",),
    skip=skip,
    units=(f"{UNIT}.timer",),
)
