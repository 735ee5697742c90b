"""IMEX: between jobs, NVIDIA's service for NVLink between machines does not run on the nodes of an UltraServer.

Slurm's prolog starts it with the addresses of the job's nodes (slurm/health/imex_domain.py). A service that systemd
starts at boot would know none of them, and other nodes would then refuse this one for the whole job.
"""

from __future__ import annotations

from bootstrap.action import Action, write_file
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.health.imex import SERVICE
from slurm.health.imex_domain import PERMIT

DROP_IN = f"/etc/systemd/system/{SERVICE}.service.d/muster.conf"
UNIT = f"""\
[Unit]
ConditionPathExists=/{PERMIT}
"""
_STOP = f"""\
command -v {SERVICE}-ctl >/dev/null || {{ echo "{SERVICE} is not installed" >&2; exit 1; }}
systemctl stop {SERVICE}"""


def plan_imex(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Let only the prolog start the service, and stop it if it was started at boot."""
    write = write_file(facts, DROP_IN, UNIT)
    if not write:
        return []
    fix = (desired.cloud and desired.cloud.image_fix) or f"use an image that has {SERVICE}"
    # The next run repeats everything until the file is written. A reload that failed is not repeated, and need not be:
    # systemd reads the file at the next boot, and only a boot or the prolog starts the service.
    return [
        Action(f"stop {SERVICE} between jobs", _STOP, log=f"journalctl -u {SERVICE}", fix=fix),
        *write,
        Action(f"reload the unit of {SERVICE}", "systemctl daemon-reload"),
    ]


def skip(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip nodes outside UltraServers."""
    inside = any(nodes.ultraserver and nodes.group == node.group for nodes in desired.inventory.sets)
    return "" if inside else "the node is not in an UltraServer"


STEP = Step("imex", "NVLink between machines", plan_imex, roles=("compute",), skip=skip)
