"""What is to be done, from what is and what should be. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import order
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config.render import Cgroup

# On the controller: written where slurmd refused the kind of cgroup that the facts promised.
CGROUP_MARKER = "cgroup"


@dataclass(frozen=True)
class Pending:
    """Something that is not as it should be."""

    node: str
    step: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.step}: {self.what}"


@dataclass(frozen=True)
class Planned:
    step: Step
    actions: tuple[Action, ...]
    skipped: str = ""


Plan = dict[str, dict[str, Planned]]
"""By node name, by step name, in order."""


def plan(facts: Mapping[str, Facts], desired: Desired) -> Plan:
    """For the nodes whose facts are known."""
    fitted = fit(facts, desired)
    return {
        node.name: {
            step.name: _planned(step, facts[node.name], node, fitted)
            for step in order.steps(desired)
            if node.role in step.roles
        }
        for node in desired.inventory.nodes
        if node.name in facts
    }


def fit(facts: Mapping[str, Facts], desired: Desired) -> Desired:
    """With the kind of cgroup that every compute node has: one configuration serves them all."""
    controller = facts.get(desired.inventory.controller.name)
    kinds: set[Cgroup] = {facts[n.name].cgroup for n in desired.inventory.compute if n.name in facts}
    if controller and desired.inventory.sets:
        # They come later, from the same image.
        kinds.add(controller.cgroup)
    if controller and controller.markers.get(CGROUP_MARKER) == "none":
        kinds = {"none"}
    kind: Cgroup = kinds.pop() if len(kinds) == 1 else "none" if kinds else "v2"
    return replace(desired, cgroup=kind)


def pending(planned: Plan) -> Iterator[Pending]:
    for node, steps in planned.items():
        for name, one in steps.items():
            for action in one.actions:
                yield Pending(node, name, action.title)


def _planned(step: Step, facts: Facts, node: Node, desired: Desired) -> Planned:
    reason = step.skip(facts, node, desired)
    return Planned(step, () if reason else tuple(step.actions(facts, node, desired)), reason)
