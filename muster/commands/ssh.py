"""`muster ssh`: becomes ssh with the stack's own config, key and pinned host keys."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

from cluster.inventory import Inventory
from cluster.names import member
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.targets.aws.shell import check_tools, launched, way_to
from muster.commands.where import running_stack
from slurm.hostlist import hostlist

TIMEOUT_S = 20.0
# Nobody is there to answer a question, and a node that is gone must not hold the command for minutes.
_UNATTENDED = ("-o", "BatchMode=yes", "-o", "ConnectTimeout={}")
# On AWS the time to connect is that of a session, too: the AWS CLI begins it, the machine's agent takes it up.
_CONNECT_S, _CONNECT_AWS_S = 5, 15


def ssh(name: str, node: str | None, user: str | None, command: list[str]) -> None:
    stack = running_stack(name)
    known = inventory(stack)
    check_tools(known)
    first, *rest = command_line(stack, node or known.login.name, user, command)
    os.execvp(first, [first, *_way(stack, known, node or known.login.name), *rest])  # noqa: S606


def _way(stack: StackHome, known: Inventory, wanted: str) -> list[str]:
    """Options of ssh for a node that its config does not have."""
    if wanted in [node.name for node in known.nodes]:
        return []
    if launched(known.sets, wanted):
        return way_to(stack, wanted)
    names = [node.name for node in known.nodes]
    names += [hostlist(member(one.group, number) for number in range(1, one.count + 1)) for one in known.sets]
    raise Stop(f"node: stack {stack.name} has no '{wanted}'", f"choose one of: {', '.join(names)}", BAD_INPUT)


def command_line(stack: StackHome, node: str, user: str | None = None, command: list[str] | None = None) -> list[str]:
    login = ["-l", user] if user else []
    return ["ssh", "-F", str(stack.ssh_config), *login, node, *(["--", *command] if command else [])]


def unattended(stack: StackHome, node: str, user: str | None, command: list[str]) -> list[str]:
    """`command_line` for a program that waits for the answer."""
    first, *rest = command_line(stack, node, user, command)
    return [first, *(option.format(_connect_s(stack)) for option in _UNATTENDED), *rest]


def run(
    stack: StackHome, node: str, script: str, *, user: str | None = None, data: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """A script on a node, never asking anything."""
    line = unattended(stack, node, user, ["bash", "-c", shlex.quote(script)])
    done = subprocess.run(line, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    return subprocess.CompletedProcess(
        line, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def _connect_s(stack: StackHome) -> int:
    try:
        return _CONNECT_AWS_S if inventory(stack).target == "aws" else _CONNECT_S
    except (OSError, ValueError):
        return _CONNECT_S


def inventory(stack: StackHome) -> Inventory:
    return Inventory.model_validate(json.loads(stack.inventory.read_text()))
