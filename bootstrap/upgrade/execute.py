"""Carry out the steps of an upgrade; a failure names the step, what is done already and what is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
SNAPSHOT = "/run/muster-snapshot"
POLL_S = 0.5

IsGone = Callable[[Node], bool]
"""Returns whether a node's machine was removed meanwhile, as those of idle nodes that are launched on demand are."""
Watch = Callable[[UpgradeStep], AbstractContextManager[None]]
"""Shows a step while the block runs; the block is left with an error if the step fails."""


@dataclass(frozen=True)
class Upgrade:
    """An upgrade of running nodes to a release."""

    release: str
    sessions: Sessions
    controller: Node
    is_gone: IsGone = lambda _node: False

    def execute_steps(self, steps: Sequence[UpgradeStep], watch: Watch) -> None:
        """Carry out steps one after another; raise BootstrapError at the first that fails.

        Every node is connected to first, so that one that does not answer is found before anything changes.
        """
        members = {node.name: node for step in steps for node in step.nodes}
        wait_for_all([self.sessions.submit(self._connect, node) for node in members.values()])
        for step in steps:
            with watch(step):
                wait_for_all([self.sessions.submit(partial(self._run, step), node) for node in step.nodes])
                if step.rejoins:
                    self._wait_for_nodes(step)

    def _connect(self, node: Node) -> None:
        try:
            self.sessions.open(node)
        except BootstrapError:
            if not self.is_gone(node):
                raise

    def _run(self, step: UpgradeStep, node: Node) -> None:
        try:
            done = self.sessions.open(node).run(step.script, timeout=step.timeout_s)
        except (BootstrapError, TransportError) as lost:
            if self.is_gone(node):
                return
            raise BootstrapError(node.name, step.name, lost.line, fix=lost.fix) from None
        # The end of a machine also ends its scripts, with some exit code.
        if done.code != 0 and not self.is_gone(node):
            raise BootstrapError(node.name, step.name, done.err.strip() or f"exit code {done.code}")

    def _wait_for_nodes(self, step: UpgradeStep) -> None:
        """Wait until Slurm sees the nodes with the release, and none of them is down.

        Nodes that Slurm has powered off do not join: their machines end. After a return to a backup, these are also the
        nodes that were off when it was taken.
        """
        deadline = time.monotonic() + REJOIN_TIMEOUT_S
        names = [node.name for node in step.nodes]
        while True:
            states = parse_nodes(self.sessions.open(self.controller).run(show_nodes(names), timeout=30).out)
            missing = [node for node in step.nodes if not self._has_joined(states.get(node.name, ABSENT))]
            if not missing:
                return
            if time.monotonic() > deadline:
                # Only now: the target has to look for each machine.
                silent = next((node.name for node in missing if not self.is_gone(node)), None)
                if silent is None:
                    return
                state = states.get(silent, ABSENT)
                line = f"Slurm shows it as {state} with version {state.version or 'unknown'}, expected {self.release}"
                raise BootstrapError(silent, step.name, line, "/var/log/slurm/slurmd.log")
            time.sleep(POLL_S)

    def _has_joined(self, state: NodeState) -> bool:
        return state.powered_off or (state.version.startswith(f"{self.release}.") and state.usable)


def take_snapshot(sessions: Sessions, controller: Node) -> str:
    """Return the queue and the accounting as text that `parse_snapshot` parses; raise BootstrapError without them."""
    # Through a file: it may be longer than the output of a script that a transport can return.
    transport = sessions.open(controller)
    done = transport.run(f"rm -f {SNAPSHOT}; umask 077\n(\n{TAKE}) >{SNAPSHOT}", timeout=SNAPSHOT_TIMEOUT_S)
    text = transport.get(SNAPSHOT).decode(errors="replace")
    try:
        parse_snapshot(text)
    except ValueError as incomplete:
        line = done.err.strip() or str(incomplete)
        raise BootstrapError(controller.name, "snapshot", line, fix="check with `muster status`") from None
    return text
