"""Reads a node's facts in one round trip."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.facts.parse import parse
from bootstrap.steps import software
from bootstrap.steps.packages import own_packages, packages
from bootstrap.transport.base import Transport
from cluster.inventory import Node

UNITS = ("ssh", "muster-hosts", "mariadb", "slurmdbd", "slurmctld", "slurmd", "sackd", "chrony")
# Of machines that set themselves up.
OWN_UNITS = ("muster-metadata", "muster-state", "muster-scratch", "muster-mounts", "systemd-resolved")
SCRIPT = (Path(__file__).parent / "collect.sh").read_text()
TIMEOUT_S = 30.0


def collect(transport: Transport, node: Node, desired: Desired) -> Facts:
    values = {
        "SHARED": desired.shared,
        "HOMES": desired.homes,
        "ENVIRONMENT": desired.environment,
        "PACKAGES": " ".join(packages(node) if desired.cloud is None else (*packages(node), *own_packages(node))),
        "UNITS": " ".join(UNITS if desired.cloud is None else UNITS + OWN_UNITS),
        "CONTROLLER": "yes" if node.role == "controller" else "no",
        "OWN": "no" if desired.cloud is None else "yes",
    }
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    asked = "" if desired.cloud is None else software.readings(node, desired)
    done = transport.run(head + asked + SCRIPT, timeout=TIMEOUT_S)
    if done.code != 0 or "\nclock\t" not in done.out:
        line = (done.err.strip().splitlines() or ["the facts came back cut short"])[-1]
        raise BootstrapError(node.name, "facts", line, fix="log in and run the command the line names")
    return parse(done.out)
