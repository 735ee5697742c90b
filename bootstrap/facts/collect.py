"""Read the facts of a node in one round trip."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.facts.parse import parse_facts
from bootstrap.transport.base import Transport
from cluster.user_ids import FIRST_UID, LAST_UID
from slurm.control.accounting import LIST_ASSOCIATIONS, LIST_USERS
from slurm.control.nodes import show_nodes

SCRIPT = (Path(__file__).parent / "collect.sh").read_text()
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Probe:
    """The parameters of the facts script: paths, packages, units and versions that a node's steps depend on."""

    shared: str
    """Mount point of the shared filesystem."""
    homes: str
    """Folder of the users' homes."""
    environment: str
    """Folder of the training environment."""
    packages: tuple[str, ...]
    """Names or glob patterns of distribution packages."""
    units: tuple[str, ...]
    """Systemd units."""
    controller: bool
    """Whether to read facts that only the controller has: Slurm's nodes and accounts, homes, shipped files."""
    machine: bool
    """Whether to read distribution, kernel and disks."""
    readings: str = ""
    """Shell text that prints `software<tab>component<tab>text` lines."""


def collect_facts(transport: Transport, node: str, probe: Probe) -> Facts:
    """Run the facts script on a node; raise BootstrapError if the answer is incomplete."""
    values = {
        "SHARED": probe.shared,
        "HOMES": probe.homes,
        "ENVIRONMENT": probe.environment,
        "PACKAGES": " ".join(probe.packages),
        "UNITS": " ".join(probe.units),
        "CONTROLLER": "yes" if probe.controller else "no",
        "MACHINE": "yes" if probe.machine else "no",
        "SHOW_NODES": show_nodes(),
        "LIST_ASSOCIATIONS": LIST_ASSOCIATIONS,
        "LIST_USERS": LIST_USERS,
        "FIRST_UID": str(FIRST_UID),
        "LAST_UID": str(LAST_UID),
    }
    assignments = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    completed = transport.run(assignments + probe.readings + SCRIPT, timeout=TIMEOUT_S)
    if completed.code != 0 or "\nclock\t" not in completed.out:
        line = (completed.err.strip().splitlines() or ["the facts are incomplete"])[-1]
        raise BootstrapError(node, "facts", line, fix="log in to the node and run the command that failed")
    return parse_facts(completed.out)
