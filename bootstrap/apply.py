"""apply: facts of all nodes, one plan, then every node at once; the controller's chain is longest and starts first."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from bootstrap.carry_out import carry_out
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.facts.collect import collect
from bootstrap.facts.model import Facts
from bootstrap.plan import CGROUP_MARKER, Plan, Planned, fit, plan
from bootstrap.progress import Event, Report, State, emit
from bootstrap.sessions import Connect, Sessions, finish
from bootstrap.settle import STEP as NODES
from bootstrap.settle import settle
from bootstrap.steps import order
from bootstrap.steps.step import Step
from cluster.inventory import Node


@dataclass(frozen=True)
class Result:
    node: str
    step: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    results: tuple[Result, ...]

    @property
    def changed(self) -> int:
        return sum(r.state == "changed" for r in self.results)

    def __str__(self) -> str:
        nodes = len({r.node for r in self.results})
        return f"{self.changed} change{'' if self.changed == 1 else 's'} on {nodes} node{'' if nodes == 1 else 's'}"


def apply(desired: Desired, connect: Connect, report: Report = emit) -> Outcome:
    try:
        return _apply(desired, connect, report)
    except BootstrapError as problem:
        if not _cgroup_refused(problem):
            raise
        detail = f"{problem.node} refuses cgroups ({problem.line}); Slurm goes on without memory limits"
        report(Event("bootstrap", problem.node, problem.step, "start", detail))
    with Sessions(connect) as sessions:
        sessions.open(desired.inventory.controller).put(f"/var/lib/muster/{CGROUP_MARKER}", b"none\n")
    return _apply(desired, connect, report)


def _apply(desired: Desired, connect: Connect, report: Report) -> Outcome:
    recorder = _Recorder(report)
    with Sessions(connect) as sessions:
        facts = gather(desired, sessions, recorder)
        planned = plan(facts, desired)
        _carry_out_all(fit(facts, desired), facts, planned, sessions, recorder)
    return Outcome(tuple(recorder.results))


def gather(desired: Desired, sessions: Sessions, report: Report) -> dict[str, Facts]:
    def work(node: Node) -> Facts:
        report(Event("bootstrap", node.name, "facts", "start"))
        return collect(sessions.open(node), node, desired)

    nodes = desired.inventory.nodes
    return dict(zip((n.name for n in nodes), finish([sessions.submit(work, n) for n in nodes]), strict=True))


def _carry_out_all(
    desired: Desired, facts: dict[str, Facts], planned: Plan, sessions: Sessions, report: Report
) -> None:
    controller, others = desired.inventory.controller, [n for n in desired.inventory.nodes if n.role != "controller"]

    def on(steps: Sequence[Step]) -> Callable[[Node], None]:
        def work(node: Node) -> None:
            carry_out(sessions.open(node), node.name, _chosen(planned, node, steps), report)

        return work

    shipped = sessions.submit(on(order.SHIPPED), controller)
    control = sessions.submit(on((*order.BASE, *order.CONTROL)), controller)
    finish([control, *(sessions.submit(on(order.BASE), n) for n in others)])
    finish([sessions.submit(on(order.MEMBERS), n) for n in others])
    _settle(desired, facts, planned, sessions, report)
    finish([shipped])


def _settle(desired: Desired, facts: dict[str, Facts], planned: Plan, sessions: Sessions, report: Report) -> None:
    controller = desired.inventory.controller
    known = facts[controller.name].slurm_nodes or {}
    quiet = not any(
        p.actions for steps in planned.values() for s in (*order.CONTROL, *order.MEMBERS) if (p := steps.get(s.name))
    )
    if quiet and all(n.name in known and known[n.name].usable for n in desired.inventory.compute):
        report(Event("bootstrap", controller.name, NODES, "ok"))
        return
    report(Event("bootstrap", controller.name, NODES, "start", "wait until Slurm has every node"))
    resumed = settle(desired.inventory, sessions.open)
    state: State = "changed" if resumed else "ok"
    report(Event("bootstrap", controller.name, NODES, state, f"resumed {', '.join(resumed)}" if resumed else ""))


def _chosen(planned: Plan, node: Node, steps: Sequence[Step]) -> list[Planned]:
    return [planned[node.name][s.name] for s in steps if s.name in planned[node.name]]


def _cgroup_refused(problem: BootstrapError) -> bool:
    return problem.step in ("compute", NODES) and bool(re.search(r"cgroup|Hybrid mode", problem.line))


class _Recorder:
    """Passes events on, and keeps the end state of every step."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = Lock()
        self._results: dict[tuple[str, str], Result] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.state != "start":
                self._results[event.node, event.step] = Result(event.node, event.step, event.state, event.detail)
        self._report(event)

    @property
    def results(self) -> list[Result]:
        return list(self._results.values())
