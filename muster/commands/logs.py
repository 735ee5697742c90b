"""`muster logs`: print the logs that a node's machine stored, also if the machine is gone."""

from __future__ import annotations

from collections.abc import Sequence

from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from infra.targets.mixins import KeepsLogs, NodeLog
from muster.commands import screen
from muster.commands.stacks import require_stack
from muster.deployments import find_deployment


def logs(name: str, node: str, machine: str | None) -> None:
    """Print the logs of the latest machine that was this node, or of the given machine."""
    target, deployment = find_deployment(require_stack(name))
    if not isinstance(target, KeepsLogs):
        fix = f"open a shell with `{format_command('ssh', name)}`; the logs of {node} are in its /var/log"
        raise Stop(f"stack {name}: machines of target {target.name} do not store their logs", fix, BAD_INPUT)
    with screen.status(f"looking for the logs of {node}"):
        stored = target.node_logs(deployment, node)
    chosen = choose_log(stored, node, machine)
    screen.err().print(describe_logs(stored, chosen), markup=False)
    print(chosen.read(), end="")


def choose_log(stored: Sequence[NodeLog], node: str, machine: str | None) -> NodeLog:
    """Return the log of a machine, by default the latest; raise Stop if there is none."""
    if not stored:
        fix = "a node stores its logs within two minutes of its set-up, every ten minutes, and when it stops or fails"
        raise Stop(f"node: no logs of '{node}' are stored", f"check the name (`make status`); {fix}", BAD_INPUT)
    for log in stored:
        if machine in (None, log.machine):
            return log
    choices = ", ".join(log.machine for log in stored)
    raise Stop(f"machine: '{machine}' has no stored logs of {node}", f"choose one of: {choices}", BAD_INPUT)


def describe_logs(stored: Sequence[NodeLog], chosen: NodeLog) -> str:
    """Return which machine the log is of, and which others there are."""
    others = [f"{log.machine} ({log.stored:%Y-%m-%d %H:%M})" for log in stored if log is not chosen]
    more = f"; others: {', '.join(others)} (--machine)" if others else ""
    return f"machine {chosen.machine}, stored {chosen.stored:%Y-%m-%d %H:%M:%S} UTC{more}"
