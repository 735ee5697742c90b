"""Wait until Slurm can use every node, resume nodes that it took out of service, and explain why a node is unusable."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from bootstrap.errors import BootstrapError
from bootstrap.steps.daemon import print_errors
from bootstrap.transport.base import Transport, TransportError
from cluster.inventory import Inventory, Node
from slurm.control.nodes import ABSENT, NodeState, parse_nodes, show_nodes, update_nodes

STEP = "nodes"
DEADLINE_S = 40.0
PAUSE_S = 0.15
PROBE_INTERVAL_S = 3.0
SLURMD_LOG = "/var/log/slurm/slurmd.log"

OpenSession = Callable[[Node], Transport]


def wait_for_nodes(inventory: Inventory, open_session: OpenSession, deadline_s: float = DEADLINE_S) -> list[str]:
    """Return the names of resumed nodes once all are usable; raise BootstrapError for a node that stays unusable."""
    controller = open_session(inventory.controller)
    resumed: set[str] = set()
    began = probed = time.monotonic()
    while True:
        states = parse_nodes(controller.run(show_nodes(), timeout=15).out)
        unusable = [n for n in inventory.compute if not states.get(n.name, ABSENT).usable]
        if not unusable:
            return sorted(resumed)
        now = time.monotonic()
        if now - began > deadline_s:
            raise _explain(unusable[0], states.get(unusable[0].name, ABSENT), open_session)
        if resumable := {n.name for n in unusable if states.get(n.name, ABSENT).resumable} - resumed:
            controller.run(shlex.join(update_nodes(",".join(sorted(resumable)), "resume")), timeout=15)
            resumed |= resumable
        if now - probed > PROBE_INTERVAL_S:
            for node in unusable:
                _check_slurmd(node, open_session)
            probed = time.monotonic()
        time.sleep(PAUSE_S)


def _check_slurmd(node: Node, open_session: OpenSession) -> None:
    """Raise at once if a node or its slurmd died, instead of waiting for the deadline."""
    script = f"systemctl -q is-active slurmd || {{ {print_errors('slurmd')}; exit 1; }}"
    try:
        completed = open_session(node).run(script, timeout=6)
    except TransportError as error:
        fix = "check whether the node is running; `muster up` replaces a node that is gone"
        raise BootstrapError(node.name, STEP, error.line, fix=fix) from None
    if completed.code != 0:
        raise BootstrapError(node.name, STEP, f"slurmd stopped: {completed.err.strip()}", SLURMD_LOG)


def _explain(node: Node, state: NodeState, open_session: OpenSession) -> BootstrapError:
    errors = open_session(node).run(print_errors("slurmd"), timeout=15).err.strip()
    line = f"Slurm shows the node as {state}" + (f", reason: {state.reason}" if state.reason else "")
    fix = f"see `scontrol show node {node.name}` on the controller, remove the cause, then run again"
    return BootstrapError(node.name, STEP, f"{line}; slurmd's log: {errors}", SLURMD_LOG, fix)
