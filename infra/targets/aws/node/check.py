"""Check this machine after set-up: daemons, names, filesystems, and that Slurm can use it."""

from __future__ import annotations

import shlex
import time

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.steps.daemon import DAEMONS, print_errors
from bootstrap.transport.base import Transport
from cluster.inventory import Node
from cluster.names import members
from slurm.control.accounting import CHECK_ACCOUNTING
from slurm.control.config import PING
from slurm.control.jobs import LEAVING
from slurm.control.nodes import ABSENT, parse_nodes, show_nodes, update_nodes

STEP = "verify"
# slurmctld sees a new node shortly after slurmd has started.
RETRY_FOR_S = 90.0
# A static node that replaces another one is drained like that one at first. If it cannot tell that the drain is older
# than its machine, it waits for the sweep, which returns it after three minutes, on a busy controller later.
RETURNED_S = 420.0
PAUSE_S = 0.5
# All replaced nodes wait at the same time and for minutes, and each look asks slurmctld twice.
LEAVING_PAUSE_S = 5.0
TIMEOUT_S = 60.0
USER_DATA = "/opt/muster/user-data.sh"
"""Copy of the user data, which it makes of itself at the first boot, and which runs again after a restart."""
_STARTED = "started\t"


def check_machine(transport: Transport, node: Node, desired: Desired, retry_for_s: float = RETRY_FOR_S) -> None:
    """Raise BootstrapError for the first check that still fails after retries."""
    began, resumed = time.monotonic(), False
    while True:
        out = transport.run(render_checks(node, desired), timeout=TIMEOUT_S).out
        fault = _find_fault(out, node)
        if not fault:
            return
        if LEAVING in fault and not resumed and _is_older_than_machine(out, node, desired):
            # The sweep would do it within a minute, in which the machine is billed and runs no job.
            resumed = True
            transport.run(shlex.join(update_nodes(node.name, "RESUME")), timeout=TIMEOUT_S)
            continue
        if time.monotonic() > began + (max(RETURNED_S, retry_for_s) if LEAVING in fault else retry_for_s):
            raise BootstrapError(node.name, STEP, fault, fix="see `journalctl -u` for the daemon on that node")
        time.sleep(LEAVING_PAUSE_S if LEAVING in fault else PAUSE_S)


def render_checks(node: Node, desired: Desired) -> str:
    """Return a script that prints `fault<tab>text` for each check that fails, and the node as Slurm sees it."""
    units = (*DAEMONS[node.role], *(("mariadb",) if node.role == "controller" else ()))
    checks = [f'systemctl -q is-active {u} || fault "{u}: $({print_errors(u)} 2>&1)"' for u in units]
    controller = desired.inventory.controller.name
    checks.append(f'getent hosts {controller} >/dev/null || fault "the name {controller} does not resolve"')
    checks += [f'mountpoint -q {m} || fault "{m} is not mounted"' for m in desired.inventory.mounts]
    checks.append(f'timeout 10 {PING} || fault "slurmctld does not answer"')
    if node.role == "controller":
        checks.append(f'out=$(timeout 20 {CHECK_ACCOUNTING} 2>&1 >/dev/null) || fault "sacct: $out"')
    if node.role == "compute":
        checks.append(f"timeout 10 {show_nodes([node.name])}")
        checks.append(f"stat -c '{_STARTED}%Y' {USER_DATA}")
    return 'fault() { printf \'fault\\t%s\\n\' "$(echo "$1" | tail -n 1)"; }\n' + "\n".join(checks) + "\n"


def _find_fault(out: str, node: Node) -> str:
    faults = [line.partition("\t")[2] for line in out.splitlines() if line.startswith("fault\t")]
    if faults:
        return faults[0]
    state = parse_nodes(out).get(node.name, ABSENT)
    # A job that asks for a node which has not registered yet makes Slurm wait for another boot of it.
    if node.role == "compute" and (not state.usable or state.powered_down or state.powering_up):
        return f"Slurm shows the node as {state}" + (f", reason: {state.reason}" if state.reason else "")
    return ""


def _is_older_than_machine(out: str, node: Node, desired: Desired) -> bool:
    """Return whether a static node was drained before its machine first ran, so that the drain was for another one.

    Slurm may have launched any other node, and `muster up` is about to end it.
    """
    if not any(node.name in members(nodes.group, nodes.static) for nodes in desired.inventory.sets):
        return False
    times = [line.removeprefix(_STARTED) for line in out.splitlines() if line.startswith(_STARTED)]
    started = float(times[0]) if times else 0.0
    return 0.0 < parse_nodes(out).get(node.name, ABSENT).since < started
