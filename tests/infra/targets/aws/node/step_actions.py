"""What the tests of steps on AWS share: nodes of each role, and what a step's actions do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts, FileFact
from bootstrap.steps.step import Step
from cluster.inventory import Node
from infra.targets.aws.node.identity import find_node
from tests.infra.targets.aws.node.clusters import fixed, inventory

CONTROLLER = fixed("controller", "controller", 10)
LOGIN = fixed("login", "login", 11)
GPU = find_node(inventory(), "gpu-3", "i-3", "10.0.1.3")


def titles(step: Step, facts: Facts, node: Node, target: Desired) -> list[str]:
    """Return the titles of a step's actions; the step must not be skipped."""
    assert step.skip(facts, node, target) == ""
    return [action.title for action in step.actions(facts, node, target)]


def written(actions: Iterable[Action], path: str) -> str:
    """Return the text that actions write to a file."""
    return next(a.data.decode() for a in actions if a.title == f"write {path}")


def apply_actions(facts: Facts, actions: Iterable[Action]) -> Facts:
    """Return the facts after these actions have written their files and enabled their units."""
    files, enabled, markers = dict(facts.files), set(facts.enabled), dict(facts.markers)
    for action in actions:
        if action.title.startswith("write "):
            mode = 0o755 if "chmod 755" in action.script else 0o600 if "umask 077" in action.script else 0o644
            owner = "slurm:slurm" if "chown slurm" in action.script else "root:root"
            files[action.title.removeprefix("write ")] = FileFact(sha256(action.data).hexdigest(), mode, owner)
        if action.title.startswith("enable "):
            enabled.add(action.title.removeprefix("enable "))
        markers |= {name: value for value, name in re.findall(r"echo (\w+) > /var/lib/muster/(\w+)", action.script)}
    return replace(facts, files=files, enabled=frozenset(enabled), markers=markers)
