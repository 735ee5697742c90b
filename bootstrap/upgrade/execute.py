"""Carry out the steps of an upgrade; a failure names the step, what is done already and what is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from bootstrap.errors import BootstrapError
from bootstrap.sessions import Sessions, wait_for_all
from bootstrap.transport.base import TransportError
from bootstrap.upgrade.steps import UpgradeStep
from cluster.inventory import Node
from slurm.control.nodes import ABSENT, NodeState, parse_nodes, show_nodes
from slurm.control.snapshot import TAKE, parse_snapshot

REJOIN_TIMEOUT_S = 90.0
SNAPSHOT_TIMEOUT_S = 300.0
POLL_S = 0.5

Watch = Callable[[UpgradeStep], AbstractContextManager[None]]
"""Shows a step while the block runs; the block is left with an error if the step fails."""


def execute_steps(
    steps: Sequence[UpgradeStep], release: str, sessions: Sessions, controller: Node, watch: Watch
) -> None:
    """Carry out steps one after another; raise BootstrapError at the first that fails.

    Every node is connected to first, so that one that does not answer is found before anything changes.
    """
    members = {node.name: node for step in steps for node in step.nodes}
    wait_for_all([sessions.submit(sessions.open, node) for node in members.values()])
    for step in steps:
        with watch(step):
            wait_for_all([sessions.submit(partial(_run, step, sessions), node) for node in step.nodes])
            if step.rejoins:
                _wait_for_nodes(step, release, sessions, controller)


def take_snapshot(sessions: Sessions, controller: Node) -> str:
    """Return the queue and the accounting as text that `parse_snapshot` parses; raise BootstrapError without them."""
    done = sessions.open(controller).run(TAKE, timeout=SNAPSHOT_TIMEOUT_S)
    try:
        parse_snapshot(done.out)
    except ValueError as incomplete:
        line = done.err.strip() or str(incomplete)
        raise BootstrapError(controller.name, "snapshot", line, fix="check with `muster status`") from None
    return done.out


def _run(step: UpgradeStep, sessions: Sessions, node: Node) -> None:
    try:
        done = sessions.open(node).run(step.script, timeout=step.timeout_s)
    except TransportError as lost:
        raise BootstrapError(node.name, step.name, lost.line, fix=lost.fix) from None
    if done.code != 0:
        raise BootstrapError(node.name, step.name, done.err.strip() or f"exit code {done.code}")


def _wait_for_nodes(step: UpgradeStep, release: str, sessions: Sessions, controller: Node) -> None:
    """Wait until Slurm sees the nodes with the new release, and none of them is down."""
    deadline = time.monotonic() + REJOIN_TIMEOUT_S
    names = [node.name for node in step.nodes]
    while True:
        states = parse_nodes(sessions.open(controller).run(show_nodes(names), timeout=30).out)
        missing = [n for n in names if not _has_joined(states.get(n, ABSENT), release)]
        if not missing:
            return
        if time.monotonic() > deadline:
            state = states.get(missing[0], ABSENT)
            line = f"Slurm shows it as {state} with version {state.version or 'unknown'}, expected {release}"
            raise BootstrapError(missing[0], step.name, line, "/var/log/slurm/slurmd.log")
        time.sleep(POLL_S)


def _has_joined(state: NodeState, release: str) -> bool:
    return state.version.startswith(f"{release}.") and state.usable
