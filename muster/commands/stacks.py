"""From `--stack NAME` to its files; a name that cannot be one is refused here."""

from __future__ import annotations

import os

from infra.engine.stop import BAD_INPUT, Stop
from infra.engine.typed import typed
from infra.home import Home, StackHome


def resolve_stack(name: str) -> StackHome:
    try:
        return Home.of(os.environ).stack(name)
    except ValueError as bad:
        raise Stop(str(bad), _choose(), BAD_INPUT) from None


def require_stack_file(name: str) -> StackHome:
    """One that has a stack file."""
    stack = resolve_stack(name)
    if not stack.file.exists():
        raise missing_stack_error(stack)
    return stack


def require_stack(name: str) -> StackHome:
    """One that has a stack file, or had one when something was made from it."""
    stack = resolve_stack(name)
    if not has_traces(stack):
        raise missing_stack_error(stack)
    return stack


def has_traces(stack: StackHome) -> bool:
    """Whether anything in a file says that there is or was such a stack."""
    return stack.file.exists() or stack.state.exists() or stack.folder.exists()


def require_running_stack(name: str) -> StackHome:
    """One that `up` has given access files."""
    stack = require_stack(name)
    if not stack.inventory.exists():
        raise Stop(f"stack {name} is not up", typed("up", name))
    return stack


def missing_stack_error(stack: StackHome) -> Stop:
    repo, file = stack.home.repo, stack.file
    shown = file.relative_to(repo) if file.is_relative_to(repo) else file
    return Stop(f"stack: there is no {shown}", _choose(), BAD_INPUT)


def _choose() -> str:
    names = Home.of(os.environ).stack_names()
    return f"choose one of: {', '.join(names)}" if names else "write one; the README has the smallest that works"
