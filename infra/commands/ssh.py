"""`muster ssh`: becomes ssh with the stack's own config, key and pinned host keys."""

from __future__ import annotations

import json
import os
import shlex
import subprocess

from infra.commands.where import running_stack
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.inventory import Inventory

TIMEOUT_S = 20.0
# Nobody is there to answer a question, and a node that is gone must not hold the command for minutes.
_UNATTENDED = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


def ssh(name: str, node: str | None, user: str | None, command: list[str]) -> None:
    stack = running_stack(name)
    wanted = node or inventory(stack).login.name
    known = [n.name for n in inventory(stack).nodes]
    if wanted not in known:
        raise Stop(f"node: stack {name} has no '{wanted}'", f"choose one of: {', '.join(known)}", BAD_INPUT)
    arguments = command_line(stack, wanted, user, command)
    os.execvp(arguments[0], arguments)  # noqa: S606


def command_line(stack: StackHome, node: str, user: str | None = None, command: list[str] | None = None) -> list[str]:
    login = ["-l", user] if user else []
    return ["ssh", "-F", str(stack.ssh_config), *login, node, *(["--", *command] if command else [])]


def unattended(stack: StackHome, node: str, user: str | None, command: list[str]) -> list[str]:
    """`command_line` for a program that waits for the answer."""
    first, *rest = command_line(stack, node, user, command)
    return [first, *_UNATTENDED, *rest]


def run(
    stack: StackHome, node: str, script: str, *, user: str | None = None, data: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """A script on a node, never asking anything."""
    line = unattended(stack, node, user, ["bash", "-c", shlex.quote(script)])
    done = subprocess.run(line, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    return subprocess.CompletedProcess(
        line, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def inventory(stack: StackHome) -> Inventory:
    return Inventory.model_validate(json.loads(stack.inventory.read_text()))
