"""Commands on nodes through ssh, with the stack's own config, key and pinned host keys."""

from __future__ import annotations

import shlex
import subprocess

from cluster.inventory import Inventory
from infra.home import StackHome
from infra.targets.facts import SCRIPT, Slurm, parse
from infra.targets.registry import get_target
from infra.targets.target import Target

TIMEOUT_S = 20.0
# No user can answer a prompt, and a removed node must not block the command for minutes.
_UNATTENDED = ("-o", "BatchMode=yes", "-o", "ConnectTimeout={}")


def command_line(stack: StackHome, node: str, user: str | None = None, command: list[str] | None = None) -> list[str]:
    """Return the ssh command that opens a shell on a node, or runs a command there."""
    login = ["-l", user] if user else []
    return ["ssh", "-F", str(stack.ssh_config), *login, node, *(["--", *command] if command else [])]


def unattended(stack: StackHome, node: str, user: str | None, command: list[str]) -> list[str]:
    """Return the ssh command that runs a command on a node without prompts and with a short timeout."""
    ssh, *arguments = command_line(stack, node, user, command)
    return [ssh, *(option.format(_connect_timeout_s(stack)) for option in _UNATTENDED), *arguments]


def run(
    stack: StackHome, node: str, script: str, *, user: str | None = None, data: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """Run a shell script on a node without prompts."""
    line = unattended(stack, node, user, ["bash", "-c", shlex.quote(script)])
    done = subprocess.run(line, input=data, capture_output=True, timeout=TIMEOUT_S, check=False)
    return subprocess.CompletedProcess(
        line, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def ask_slurm(stack: StackHome, controller: str) -> Slurm:
    """Return the state of Slurm, for `status`, or why the controller does not answer."""
    try:
        done = run(stack, controller, SCRIPT, user="root")
    except subprocess.TimeoutExpired:
        return Slurm(problem=f"the controller did not answer within {TIMEOUT_S:.0f} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Slurm(problem=lines[-1] if lines else f"ssh ended with code {done.returncode}")
    return parse(done.stdout)


def read_inventory(stack: StackHome) -> Inventory:
    """Return the inventory that the last `up` wrote."""
    return Inventory.model_validate_json(stack.inventory.read_text())


def target_of_inventory(inventory: Inventory) -> Target:
    """Return the target that built a running cluster."""
    return get_target(inventory.target)


def _connect_timeout_s(stack: StackHome) -> int:
    try:
        return target_of_inventory(read_inventory(stack)).connect_timeout_s
    except (OSError, ValueError):
        return Target.connect_timeout_s
