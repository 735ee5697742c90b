"""Health: the checks that drain a broken node, and the service that stops its jobs while it is cut off."""

from __future__ import annotations

import json

from bootstrap.action import Action, enable_unit, write_file
from bootstrap.changes import change_units
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.program import pack_program
from bootstrap.steps.cloud.software import read_versions
from bootstrap.steps.fabric import list_ports
from bootstrap.steps.step import Step
from cluster.inventory import Node
from cluster.names import members
from slurm.health import fence_service

ETC = "/etc/muster"
SOURCES = ("control", "health", "rdma")
# Each round of checks runs `clock` as a program of its own: importing all checks would take most of its time.
START = """\
import sys
if sys.argv[1:2] == ["clock"] and len(sys.argv) == 3:
    from slurm.health.other_clock import print_offset
    sys.exit(print_offset(sys.argv[2]))
from slurm.health.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def plan_health(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Write the check program and what it expects; Slurm runs it before jobs, at intervals, and if a step hangs."""
    program = [
        *write_file(facts, f"{ETC}/health.pyz", pack_program(desired.root, SOURCES, START)),
        *write_file(facts, fence_service.UNIT_PATH, render_unit(node, desired)),
    ]
    running = fence_service.NAME in facts.active and fence_service.NAME in facts.enabled
    if program or not running:
        start = f"{enable_unit(fence_service.NAME)}\nsystemctl daemon-reload\nsystemctl restart {fence_service.NAME}"
        program.append(Action(f"start {fence_service.NAME}", start, changes=change_units(fence_service.NAME)))
    return [
        *write_file(facts, f"{ETC}/expected.json", describe_expected(facts, node, desired)),
        *program,
        *write_file(facts, f"{ETC}/health", render_program(node, desired, "interval"), 0o755),
        *write_file(facts, f"{ETC}/prolog", render_program(node, desired, "prolog"), 0o755),
        *write_file(facts, f"{ETC}/unkillable", render_program(node, desired, "unkillable"), 0o755),
    ]


def render_unit(node: Node, desired: Desired) -> str:
    """Return the unit of the service, with the node's name where the host name may differ."""
    name = f"Environment=SLURMD_NODENAME={node.name}\n" if _may_have_another_host_name(node, desired) else ""
    return fence_service.UNIT.replace("[Service]\n", f"[Service]\n{name}")


def render_program(node: Node, desired: Desired, when: str) -> str:
    """Return a program that Slurm runs; slurmstepd and systemd, unlike slurmd, do not tell it the node's name."""
    name = f': "${{SLURMD_NODENAME:={node.name}}}"\nexport SLURMD_NODENAME\n'
    return f"#!/bin/sh\n{name if _may_have_another_host_name(node, desired) else ''}{render_exec_line(when)}"


def _may_have_another_host_name(node: Node, desired: Desired) -> bool:
    return desired.cloud is not None or node.adopted is not None


def render_exec_line(when: str) -> str:
    """Return the last line of a program that Slurm runs at an interval, or before or after a job."""
    return f'exec python3 {ETC}/health.pyz {when} "$@"\n'


def describe_expected(facts: Facts, node: Node, desired: Desired) -> str:
    """Return as JSON what the health checks and the fabric job expect, without simulated GPUs: they have no driver."""
    node_set = next((nodes for nodes in desired.inventory.sets if nodes.group == node.group), None)
    return json.dumps(
        {
            "fabric": node.fabric,
            "group": node.group,
            "max_drained_percent": desired.spec.health.max_drained_percent,
            "gpus": node.gpus.count if node.gpus.kind == "real" else 0,
            "nvlinks": node_set.nvlinks if node_set else 0,
            "efa": node_set.efa_devices if node_set else 0,
            "rdma": {port.name: port.gbps for port in list_ports(facts, node)},
            "ultraserver": members(node_set.group, node_set.count) if node_set and node_set.ultraserver else [],
            "busbw": node_set.busbw if node_set else {},
            "mounts": list(desired.inventory.mounts),
            "controller": desired.inventory.controller.address,
            "software": {} if desired.cloud is None else read_versions(facts, node, desired),
        },
        sort_keys=True,
    )


STEP = Step(
    "health",
    "checks before jobs and at intervals",
    plan_health,
    roles=("compute",),
    units=(fence_service.NAME,),
)
