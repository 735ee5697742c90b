"""`muster output`: print the stack's outputs as JSON."""

from __future__ import annotations

import json
from typing import Any

from infra.engine import pulumi
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands import last_up
from muster.commands.stacks import not_up_error, require_stack


def output(name: str, key: str | None) -> None:
    """Print all outputs of a stack, or one; raise Stop if it is not up."""
    stack = require_stack(name)
    recorded = pulumi.outputs(stack)
    if not recorded:
        raise not_up_error(name)
    outputs = drop_stale_ready(recorded, last_up.read_last_up(stack))
    if key is None:
        print(json.dumps(outputs, indent=2))
        return
    if key not in outputs:
        raise Stop(f"output: stack {name} has no '{key}'", f"choose one of: {', '.join(sorted(outputs))}", BAD_INPUT)
    print(json.dumps(outputs[key], indent=2) if not isinstance(outputs[key], str) else outputs[key])


def drop_stale_ready(outputs: dict[str, Any], last: last_up.LastUp | None) -> dict[str, Any]:
    """Return the outputs without `ready`, unless the last `up` passed: Pulumi keeps outputs of earlier runs."""
    passed = last is None or last.result == "ready"
    return {key: value for key, value in outputs.items() if passed or key != "ready"}
