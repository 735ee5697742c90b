"""Stacks with a Pulumi state."""

from __future__ import annotations

import json
from pathlib import Path

from infra.home import Home, StackHome


def make_stack(folder: Path, resources: list[object]) -> StackHome:
    """Return a stack whose Pulumi state has these resources."""
    stack = Home.of({"MUSTER_HOME": str(folder)}).stack("dev")
    stack.state.parent.mkdir(parents=True, exist_ok=True)
    stack.state.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
    return stack
