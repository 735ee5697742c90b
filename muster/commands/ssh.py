"""`muster ssh`: run ssh with the stack's config, key and pinned host keys."""

from __future__ import annotations

import os

from cluster.inventory import Inventory
from cluster.names import member
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.shell import command_line, read_inventory, target_of_inventory
from muster.commands.stacks import require_running_stack
from muster.deployments import find_deployment
from slurm.hostlist import hostlist


def ssh(name: str, node: str | None, user: str | None, command: list[str]) -> None:
    """Replace this process with ssh to a node of the stack, by default the login node."""
    stack = require_running_stack(name)
    inventory = read_inventory(stack)
    target_of_inventory(inventory).check_shell_tools()
    chosen = node or inventory.login.name
    program, *arguments = command_line(stack, chosen, user, command)
    os.execvp(program, [program, *_options(stack, inventory, chosen), *arguments])  # noqa: S606


def _options(stack: StackHome, inventory: Inventory, node: str) -> list[str]:
    """Return the ssh options for a node that is not in ssh_config."""
    permanent = [member.name for member in inventory.nodes]
    if node in permanent:
        return []
    launched = {s.group: [member(s.group, number) for number in range(1, s.count + 1)] for s in inventory.sets}
    if any(node in nodes for nodes in launched.values()):
        target, deployment = find_deployment(stack)
        return target.ssh_options(deployment, node)
    choices = [*permanent, *map(hostlist, launched.values())]
    raise Stop(f"node: stack {stack.name} has no '{node}'", f"choose one of: {', '.join(choices)}", BAD_INPUT)
