"""Find drift: compare facts with the desired state and report the differences, without changing anything."""

from __future__ import annotations

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.collect import collect_facts
from bootstrap.facts.model import Facts
from bootstrap.plan import Deviation, list_deviations, plan_steps
from bootstrap.sessions import Connect, Sessions
from bootstrap.steps.registry import build_probe
from bootstrap.transport.base import TransportError
from bootstrap.wait_for_nodes import STEP as NODES_STEP
from cluster.inventory import Node


def find_drift(desired: Desired, connect: Connect) -> tuple[Deviation, ...]:
    """Return all deviations; a node that does not answer is one of them."""
    facts: dict[str, Facts] = {}
    deviations: list[Deviation] = []
    with Sessions(connect) as sessions:

        def read(node: Node) -> Facts | Deviation:
            try:
                return collect_facts(sessions.open(node), node.name, build_probe(node, desired))
            except (BootstrapError, TransportError) as error:
                return Deviation(node.name, "connect", error.line)

        nodes = desired.inventory.nodes
        futures = [sessions.submit(read, node) for node in nodes]
        for node, future in zip(nodes, futures, strict=True):
            answer = future.result()
            if isinstance(answer, Facts):
                facts[node.name] = answer
            else:
                deviations.append(answer)
    try:
        deviations += list_deviations(plan_steps(facts, desired))
    except BootstrapError as error:
        deviations.append(Deviation(error.node, error.step, error.line))
    return tuple(deviations + _list_unusable(facts, desired))


def _list_unusable(facts: dict[str, Facts], desired: Desired) -> list[Deviation]:
    controller = facts.get(desired.inventory.controller.name)
    if controller is None or controller.slurm_nodes is None:
        return []
    states = controller.slurm_nodes
    unusable = [n.name for n in desired.inventory.compute if n.name in states and not states[n.name].usable]
    return [Deviation(name, NODES_STEP, f"Slurm shows the node as {states[name]}") for name in unusable]
