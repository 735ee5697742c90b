"""drift: what is not as it should be, by facts and the pure plan. Changes nothing; a node that is gone is a finding."""

from __future__ import annotations

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.collect import collect
from bootstrap.facts.model import Facts
from bootstrap.plan import Pending, pending, plan
from bootstrap.sessions import Connect, Sessions
from bootstrap.settle import STEP as NODES
from bootstrap.transport.base import TransportError
from cluster.inventory import Node


def drift(desired: Desired, connect: Connect) -> tuple[Pending, ...]:
    facts: dict[str, Facts] = {}
    found: list[Pending] = []
    with Sessions(connect) as sessions:

        def work(node: Node) -> Facts | Pending:
            try:
                return collect(sessions.open(node), node, desired)
            except (BootstrapError, TransportError) as problem:
                return Pending(node.name, "connect", problem.line)

        nodes = desired.inventory.nodes
        futures = [sessions.submit(work, node) for node in nodes]
        for node, future in zip(nodes, futures, strict=True):
            answer = future.result()
            if isinstance(answer, Facts):
                facts[node.name] = answer
            else:
                found.append(answer)
    try:
        found += pending(plan(facts, desired))
    except BootstrapError as problem:
        found.append(Pending(problem.node, problem.step, problem.line))
    return tuple(found + _unusable(facts, desired))


def _unusable(facts: dict[str, Facts], desired: Desired) -> list[Pending]:
    controller = facts.get(desired.inventory.controller.name)
    if controller is None or controller.slurm_nodes is None:
        return []
    known = controller.slurm_nodes
    bad = [n.name for n in desired.inventory.compute if n.name in known and not known[n.name].usable]
    return [Pending(name, NODES, f"Slurm has the node as {known[name]}") for name in bad]
