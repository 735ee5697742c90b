"""`muster alerts`: encrypt the address of a webhook and write it into the stack file."""

from __future__ import annotations

import getpass
import json
import re
import sys

from cluster.spec.alerts import ADDRESS
from cluster.spec.edit import set_lines, set_value
from cluster.spec.stack_file import CONFIG_KEY, replace_stack_file
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands import screen
from muster.commands.stacks import require_stack_file

FIELD = "alerts.webhook"


def alerts(name: str) -> None:
    """Read an address from standard input, encrypt it, and write it into the stack file."""
    stack = require_stack_file(name)
    address = read_address()
    with lock.held(stack, "alerts", wait=False, say=screen.say):
        secure, encryption = pulumi.encrypt(stack, f"{CONFIG_KEY}.{FIELD}", address, screen.say)
        text = set_value(stack.file.read_text(encoding="utf-8"), FIELD, json.dumps({"secure": secure}))
        replace_stack_file(stack.file, set_lines(text, encryption))
    screen.print_success(f"{stack.file.name} has the encrypted address; `{format_command('up', name)}` applies it")


def read_address() -> str:
    """Return the address that a person types or a program pipes in; it is never shown."""
    asks = sys.stdin.isatty()
    address = (getpass.getpass("webhook (https://...): ") if asks else sys.stdin.readline()).strip()
    if not re.fullmatch(ADDRESS, address):
        raise Stop(
            f"{FIELD}: the input is not an address that begins with https:// or http:// (value not shown)",
            "pipe the address in, as in `.venv/bin/muster alerts < file`",
            code=BAD_INPUT,
        )
    return address
