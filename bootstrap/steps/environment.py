"""environment: the Python training environment on the shared filesystem, made once per lock file."""

from __future__ import annotations

import shlex
from pathlib import Path

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

SCRIPT = Path(__file__).parent.parent / "scripts" / "training-env.sh"
BUILD_S = 1800.0


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    if facts.environment_complete:
        return []
    script, lock = SCRIPT.read_bytes(), desired.lock
    run = (
        "folder=$(mktemp -d)\n"
        "trap 'rm -rf \"$folder\"' EXIT\n"
        f'head -c {len(script)} > "$folder/training-env.sh"\n'
        f'head -c {len(lock)} > "$folder/lock"\n'
        f'sh "$folder/training-env.sh" "$folder/lock" {shlex.quote(desired.environment)} </dev/null'
    )
    return [Action(f"make {desired.environment}", run, script + lock, BUILD_S, slow=True)]


STEP = Step("environment", "Python training environment of the lock file", actions, roles=("controller",))
