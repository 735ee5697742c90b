"""Resolve `--stack NAME` to the files of the stack, and reject invalid or unknown names."""

from __future__ import annotations

import os
from pathlib import PurePath

from cluster.catalog.similar import find_similar
from infra.engine import remote_state
from infra.engine.access_restore import restore_access
from infra.engine.command_line import format_command
from infra.engine.folder_owner import claim_folder
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home, StackHome
from muster.commands.stack_spec import find_host_target


def resolve_stack(name: str) -> StackHome:
    """Return the stack with this name, which may not exist yet; raise Stop if the name is invalid.

    If operators share its state, what this machine has of it is brought up to date.
    """
    stack = name_stack(name)
    if stack.home.remote:
        remote_state.check_store(stack.home)
    claim_folder(stack)
    if stack.home.remote:
        restore_access(stack, remote_state.pull(stack))
        # The first files of a stack create its folder.
        claim_folder(stack)
    return stack


def name_stack(name: str) -> StackHome:
    """Return the stack with this name without reading a remote state; raise Stop if the name is invalid."""
    try:
        stack = Home.of(os.environ).stack(name)
    except ValueError as bad:
        raise Stop(str(bad), _list_choices(_strip_file_name(name)), BAD_INPUT) from None
    if not stack.home.remote:
        return stack
    on_this_machine = StackHome(stack.home.with_file_state(), name)
    # Nobody else can reach a cluster that runs on this machine. Without a stack file, its state tells.
    if find_host_target(stack) or (not stack.file.exists() and on_this_machine.state.exists()):
        return on_this_machine
    return stack


def require_stack_file(name: str, *, offline: bool = False) -> StackHome:
    """Return the stack with this name; raise Stop if it has no stack file. `offline` does not read a remote state."""
    stack = name_stack(name)
    if not stack.file.exists():
        raise missing_stack_error(stack)
    return stack if offline else resolve_stack(name)


def require_stack(name: str) -> StackHome:
    """Return the stack with this name; raise Stop if it has neither a stack file nor files of an earlier `up`."""
    stack = resolve_stack(name)
    if not has_traces(stack):
        raise missing_stack_error(stack)
    return stack


def has_traces(stack: StackHome) -> bool:
    """Tell whether a stack has a stack file, a Pulumi state or a folder."""
    return stack.file.exists() or stack.state.exists() or stack.folder.exists()


def require_running_stack(name: str) -> StackHome:
    """Return the stack with this name; raise Stop if it is not up."""
    stack = require_stack(name)
    if not stack.inventory.exists():
        raise not_up_error(name)
    return stack


def not_up_error(name: str) -> Stop:
    """Return the error for a command that needs a running cluster."""
    return Stop(f"stack {name} is not up", format_command("up", name))


def missing_stack_error(stack: StackHome) -> Stop:
    """Return the error for a stack without a stack file, with the available names."""
    repo, file = stack.home.repo, stack.file
    shown = file.relative_to(repo) if file.is_relative_to(repo) else file
    return Stop(f"stack: {shown} does not exist", _list_choices(stack.name), BAD_INPUT)


def _strip_file_name(name: str) -> str:
    """Return the stack's name of what may be the path of its file: `local` of `stacks/Pulumi.local.yaml`."""
    return PurePath(name).name.removeprefix("Pulumi.").removesuffix(".yaml")


def _list_choices(name: str) -> str:
    names = Home.of(os.environ).stack_names()
    if not names:
        return "write a stack file; the README shows the smallest"
    guess = "".join(f"did you mean `{near}`? Otherwise " for near in find_similar(name, names, limit=1))
    return f"{guess}choose one of: {', '.join(names)}"
