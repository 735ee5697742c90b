"""From `--stack NAME` to its files; a name that cannot be one is refused here."""

from __future__ import annotations

import os

from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home, StackHome


def stack_home(name: str) -> StackHome:
    try:
        return Home.of(os.environ).stack(name)
    except ValueError as bad:
        raise Stop(str(bad), _choose(), BAD_INPUT) from None


def existing_stack(name: str) -> StackHome:
    """One that has a stack file."""
    stack = stack_home(name)
    if not stack.file.exists():
        raise Stop(f"stack: there is no {stack.file}", _choose(), BAD_INPUT)
    return stack


def running_stack(name: str) -> StackHome:
    """One that `up` has given access files."""
    stack = stack_home(name)
    if not stack.inventory.exists():
        raise Stop(f"stack {name} is not up", f"muster up --stack {name}" if name != "local" else "muster up")
    return stack


def _choose() -> str:
    names = Home.of(os.environ).stack_names()
    return f"choose one of: {', '.join(names)}" if names else "write one; the README has the smallest that works"
