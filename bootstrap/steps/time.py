"""time: one clock; Slurm's credentials and the logs of many ranks depend on it."""

from __future__ import annotations

from bootstrap.action import Action, enable
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from infra.inventory import Node


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    if "chrony" in facts.active and "chrony" in facts.enabled:
        return []
    install = "command -v chronyd >/dev/null || apt-get -q install -y --no-install-recommends chrony"
    script = f"{install}\n{enable('chrony')}\nsystemctl start chrony"
    fix = "give the node a way to its package mirror, or an image with chrony"
    return [Action("start chrony", script, timeout=300, log="journalctl -u chrony", fix=fix, slow=True)]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "a container has its host's clock" if facts.container else ""


STEP = Step("time", "clock synchronised by chrony", actions, skip=skip)
