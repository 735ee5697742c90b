"""`muster output`: the stack's outputs as JSON. `ready` is there only if the last `up` made it so."""

from __future__ import annotations

import json
from typing import Any

from infra.engine import pulumi
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands import last_up
from muster.commands.stacks import require_stack


def output(name: str, key: str | None) -> None:
    stack = require_stack(name)
    found = drop_stale_ready(pulumi.outputs(stack), last_up.read_last_up(stack))
    if key is None:
        print(json.dumps(found, indent=2))
        return
    if key not in found:
        known = ", ".join(sorted(found)) or "none: is the stack up?"
        raise Stop(f"output: stack {name} has no '{key}'", f"there are: {known}", BAD_INPUT)
    print(json.dumps(found[key], indent=2) if not isinstance(found[key], str) else found[key])


def drop_stale_ready(found: dict[str, Any], last: last_up.LastUp | None) -> dict[str, Any]:
    """Pulumi keeps outputs of the last good run after a bad one; a gate that failed since must not read as passed."""
    passed = last is None or last.result == "ready"
    return {key: value for key, value in found.items() if passed or key != "ready"}
