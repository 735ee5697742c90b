"""Does it hold, on this machine: daemons, names, filesystems, and that Slurm has it."""

from __future__ import annotations

import time

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.steps.limits import DAEMONS
from bootstrap.steps.slurm_key import last_words
from bootstrap.transport.base import Transport
from cluster.inventory import Node
from slurm.control.accounting import CHECK_ACCOUNTING
from slurm.control.config import PING
from slurm.control.nodes import ABSENT, parse_nodes, show_nodes

STEP = "verify"
PATIENCE_S = 90.0
PAUSE_S = 0.5
TIMEOUT_S = 60.0


def check(transport: Transport, node: Node, desired: Desired, patience_s: float = PATIENCE_S) -> None:
    """Raises what does not hold, also on a later look: slurmctld hears of a new node a moment after slurmd runs."""
    deadline = time.monotonic() + patience_s
    while fault := _fault(transport, node, desired):
        if time.monotonic() > deadline:
            raise BootstrapError(node.name, STEP, fault, fix="`journalctl -u` for the daemon on that node says more")
        time.sleep(PAUSE_S)


def script(node: Node, desired: Desired) -> str:
    """Prints `fault<tab>text` for each check that fails, and the node as Slurm has it."""
    units = (*DAEMONS[node.role], *(("mariadb",) if node.role == "controller" else ()))
    checks = [f'systemctl -q is-active {u} || say "{u}: $({last_words(u)} 2>&1)"' for u in units]
    controller = desired.inventory.controller.name
    checks.append(f'getent hosts {controller} >/dev/null || say "the name {controller} does not resolve"')
    checks += [f'mountpoint -q {m} || say "{m} is not mounted"' for m in desired.inventory.mounts]
    checks.append(f'timeout 10 {PING} || say "slurmctld does not answer"')
    if node.role == "controller":
        checks.append(f'out=$(timeout 20 {CHECK_ACCOUNTING} 2>&1 >/dev/null) || say "sacct: $out"')
    if node.role == "compute":
        checks.append(f"timeout 10 {show_nodes([node.name])}")
    return 'say() { printf \'fault\\t%s\\n\' "$(echo "$1" | tail -n 1)"; }\n' + "\n".join(checks) + "\n"


def _fault(transport: Transport, node: Node, desired: Desired) -> str:
    out = transport.run(script(node, desired), timeout=TIMEOUT_S).out
    faults = [line.partition("\t")[2] for line in out.splitlines() if line.startswith("fault\t")]
    if faults:
        return faults[0]
    state = parse_nodes(out).get(node.name, ABSENT)
    if node.role == "compute" and not state.usable:
        return f"Slurm has the node as {state}" + (f", reason: {state.reason}" if state.reason else "")
    return ""
