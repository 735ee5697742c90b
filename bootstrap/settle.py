"""Waits until Slurm can use every node, brings back those it had given up, and says why where it cannot."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from bootstrap.errors import BootstrapError
from bootstrap.steps.slurm_key import last_words
from bootstrap.transport.base import Transport, TransportError
from cluster.inventory import Inventory, Node
from slurm.control.nodes import ABSENT, NodeState, parse_nodes, show_nodes, update_nodes

STEP = "nodes"
DEADLINE_S = 40.0
PAUSE_S = 0.15
PROBE_S = 3.0


def settle(
    inventory: Inventory, open_session: Callable[[Node], Transport], deadline_s: float = DEADLINE_S
) -> list[str]:
    """Returns the nodes that were resumed."""
    controller = open_session(inventory.controller)
    resumed: set[str] = set()
    began = probed = time.monotonic()
    while True:
        states = parse_nodes(controller.run(show_nodes(), timeout=15).out)
        bad = [n for n in inventory.compute if not states.get(n.name, ABSENT).usable]
        if not bad:
            return sorted(resumed)
        now = time.monotonic()
        if now - began > deadline_s:
            raise _complaint(bad[0], states.get(bad[0].name, ABSENT), open_session)
        if again := {n.name for n in bad if states.get(n.name, ABSENT).resumable} - resumed:
            controller.run(shlex.join(update_nodes(",".join(sorted(again)), "resume")), timeout=15)
            resumed |= again
        if now - probed > PROBE_S:
            for node in bad:
                _probe(node, open_session)
            probed = time.monotonic()
        time.sleep(PAUSE_S)


def _probe(node: Node, open_session: Callable[[Node], Transport]) -> None:
    """A node that died meanwhile is named at once, not after the deadline."""
    try:
        done = open_session(node).run(
            f"systemctl -q is-active slurmd || {{ {last_words('slurmd')}; exit 1; }}", timeout=6
        )
    except TransportError as problem:
        fix = "look whether the node is running; `muster up` again heals a node that is gone"
        raise BootstrapError(node.name, STEP, problem.line, fix=fix) from None
    if done.code != 0:
        raise BootstrapError(node.name, STEP, f"slurmd stopped: {done.err.strip()}", "/var/log/slurm/slurmd.log")


def _complaint(node: Node, state: NodeState, open_session: Callable[[Node], Transport]) -> BootstrapError:
    words = open_session(node).run(last_words("slurmd"), timeout=15).err.strip()
    line = f"Slurm has the node as {state}" + (f", reason: {state.reason}" if state.reason else "")
    fix = f"`scontrol show node {node.name}` on the controller has the details; correct the cause, then run again"
    return BootstrapError(node.name, STEP, f"{line}; slurmd says: {words}", "/var/log/slurm/slurmd.log", fix)
