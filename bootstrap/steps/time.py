"""time: one clock; Slurm's credentials and the logs of many ranks depend on it."""

from __future__ import annotations

from bootstrap.action import Action, enable, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

# Amazon's clock answers every machine, also one that has no way out.
SOURCES = "/etc/chrony/sources.d/muster.sources"
AMAZON = "server 169.254.169.123 prefer iburst minpoll 4 maxpoll 4\n"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    sources = write(facts, SOURCES, AMAZON) if desired.cloud else []
    if sources:
        sources.append(Action("use Amazon's clock", "systemctl restart chrony"))
    return [*_daemon(facts), *sources]


def _daemon(facts: Facts) -> list[Action]:
    if "chrony" in facts.active and "chrony" in facts.enabled:
        return []
    install = "command -v chronyd >/dev/null || apt-get -q install -y --no-install-recommends chrony"
    script = f"{install}\n{enable('chrony')}\nsystemctl start chrony"
    fix = "give the node a way to its package mirror, or an image with chrony"
    return [Action("start chrony", script, timeout=300, log="journalctl -u chrony", fix=fix, slow=True)]


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "a container has its host's clock" if facts.container else ""


STEP = Step("time", "clock synchronised by chrony", actions, skip=skip)
