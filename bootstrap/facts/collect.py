"""Reads a node's facts in one round trip."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.facts.parse import parse
from bootstrap.steps.packages import packages
from bootstrap.transport.base import Transport
from infra.inventory import Node

UNITS = ("ssh", "muster-hosts", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd", "chrony")
SCRIPT = (Path(__file__).parent / "collect.sh").read_text()
TIMEOUT_S = 30.0


def collect(transport: Transport, node: Node, desired: Desired) -> Facts:
    values = {
        "SHARED": desired.shared,
        "ENVIRONMENT": desired.environment,
        "PACKAGES": " ".join(packages(node)),
        "UNITS": " ".join(UNITS),
        "CONTROLLER": "yes" if node.role == "controller" else "no",
    }
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    done = transport.run(head + SCRIPT, timeout=TIMEOUT_S)
    if done.code != 0 or "\nclock\t" not in done.out:
        line = (done.err.strip().splitlines() or ["the facts came back cut short"])[-1]
        raise BootstrapError(node.name, "facts", line, fix="log in and run the command the line names")
    return parse(done.out)
