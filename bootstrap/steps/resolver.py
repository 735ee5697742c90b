"""resolver: nodes find each other by short name; the cluster's own domain is searched first."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

CONF = "/etc/systemd/resolved.conf.d/muster.conf"


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    domain = desired.cloud.domain if desired.cloud else ""
    todo = write(facts, CONF, f"[Resolve]\nDomains={domain}\n")
    if todo:
        todo.append(Action("restart the resolver", "systemctl restart systemd-resolved"))
    return todo


def skip(facts: Facts, node: Node, desired: Desired) -> str:  # noqa: ARG001
    return "" if "systemd-resolved" in facts.active else "this image has another resolver"


STEP = Step("resolver", "the cluster's domain is searched", actions, skip=skip)
