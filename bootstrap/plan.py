"""Plan the steps of each node from its facts and the desired state. Pure: nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bootstrap.action import Action
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps import registry
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config.render import Cgroup

# Marker on the controller, written if slurmd rejected the kind of cgroup that the facts showed.
CGROUP_MARKER = "cgroup"


@dataclass(frozen=True)
class Deviation:
    """A difference between a node and its desired state."""

    node: str
    step: str
    what: str

    def __str__(self) -> str:
        return f"{self.node}: {self.step}: {self.what}"


@dataclass(frozen=True)
class PlannedStep:
    """A step with the actions it needs on one node; `skipped` is the reason if it does not apply."""

    step: Step
    actions: tuple[Action, ...]
    skipped: str = ""


Plan = dict[str, dict[str, PlannedStep]]
"""Planned steps by node name and step name, in order."""


def plan_steps(facts: Mapping[str, Facts], desired: Desired) -> Plan:
    """Plan all steps of the nodes in `facts`."""
    desired = choose_cgroup(facts, desired)
    return {
        node.name: {
            step.name: _plan_step(step, facts[node.name], node, desired)
            for step in registry.select_steps(desired)
            if node.role in step.roles
        }
        for node in desired.inventory.nodes
        if node.name in facts
    }


def choose_cgroup(facts: Mapping[str, Facts], desired: Desired) -> Desired:
    """Return the desired state with a kind of cgroup that every compute node has, as they share a configuration."""
    controller = facts.get(desired.inventory.controller.name)
    kinds: set[Cgroup] = {facts[n.name].cgroup for n in desired.inventory.compute if n.name in facts}
    if controller and desired.inventory.sets:
        # Nodes that do not exist yet will start from the controller's image.
        kinds.add(controller.cgroup)
    if controller and controller.markers.get(CGROUP_MARKER) == "none":
        kinds = {"none"}
    kind: Cgroup = kinds.pop() if len(kinds) == 1 else "none" if kinds else "v2"
    return replace(desired, cgroup=kind)


def list_deviations(planned: Plan) -> Iterator[Deviation]:
    """Yield a deviation for each planned action."""
    for node, steps in planned.items():
        for name, step in steps.items():
            for action in step.actions:
                yield Deviation(node, name, action.title)


def _plan_step(step: Step, facts: Facts, node: Node, desired: Desired) -> PlannedStep:
    reason = step.skip(facts, node, desired)
    return PlannedStep(step, () if reason else tuple(step.actions(facts, node, desired)), reason)
