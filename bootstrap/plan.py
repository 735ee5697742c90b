"""Plan the steps of each node from its facts and the desired state. Pure: nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bootstrap.action import Action, record_changes
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.steps import registry
from bootstrap.steps.step import Step
from cluster.inventory import Node
from slurm.config.render import Cgroup

CGROUP_STEP = "cgroups"
UNLIMITED_FIX = (
    "repair the kernel's cgroups, or set `slurm.cgroups: none`: jobs then run without limits, and can take the CPUs "
    "and memory of others"
)


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
    """Return the desired state with a kind of cgroup that every compute node has, as they share a configuration.

    Raise BootstrapError if there is none: jobs run without limits only if the spec says so.
    """
    if desired.spec.slurm.cgroups == "none":
        return replace(desired, cgroup="none")
    controller = facts.get(desired.inventory.controller.name)
    kinds: dict[str, Cgroup] = {n.name: facts[n.name].cgroup for n in desired.inventory.compute if n.name in facts}
    if controller and desired.inventory.sets:
        # Nodes that do not exist yet will start from the controller's image.
        kinds[desired.inventory.controller.name] = controller.cgroup
    if "none" in kinds.values() or len(set(kinds.values())) > 1:
        raise _describe_missing_cgroups(kinds)
    return replace(desired, cgroup=next(iter(kinds.values()), "v2"))


def list_deviations(planned: Plan) -> Iterator[Deviation]:
    """Yield a deviation for each planned action."""
    for node, steps in planned.items():
        for name, step in steps.items():
            for action in step.actions:
                yield Deviation(node, name, action.title)


def _describe_missing_cgroups(kinds: Mapping[str, Cgroup]) -> BootstrapError:
    """Return the error that names the first node without cgroups, or two nodes that differ."""
    first, kind = next(iter(kinds.items()))
    for node, other in kinds.items():
        if other == "none":
            line = "Slurm cannot limit jobs: the kernel offers no cgroups with a memory controller"
            return BootstrapError(node, CGROUP_STEP, line, fix=UNLIMITED_FIX)
        if other != kind:
            line = f"Slurm needs one version of cgroups on all nodes: {node} has {other}, {first} has {kind}"
            return BootstrapError(node, CGROUP_STEP, line, fix=UNLIMITED_FIX)
    raise AssertionError("every node has the same cgroups")


def _plan_step(step: Step, facts: Facts, node: Node, desired: Desired) -> PlannedStep:
    reason = step.skip(facts, node, desired)
    actions = () if reason else tuple(step.actions(facts, node, desired))
    return PlannedStep(step, tuple(map(record_changes, actions)) if node.adopted else actions, reason)
