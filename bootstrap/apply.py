"""Apply the desired state: read the facts of all nodes, make one plan, and execute it on all nodes at once.

The controller has the longest chain of steps and starts first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.execute import execute_steps
from bootstrap.facts.collect import collect_facts
from bootstrap.facts.model import Facts
from bootstrap.plan import UNLIMITED_FIX, Plan, PlannedStep, choose_cgroup, plan_steps
from bootstrap.progress import Event, Report, State, emit
from bootstrap.sessions import Connect, Sessions, wait_for_all
from bootstrap.steps import registry
from bootstrap.steps.step import Step
from bootstrap.storage_check import check_storage
from bootstrap.wait_for_nodes import STEP as NODES_STEP
from bootstrap.wait_for_nodes import wait_for_nodes
from cluster.inventory import Node
from cluster.plural import format_count


@dataclass(frozen=True)
class StepResult:
    """How a step ended on a node."""

    node: str
    step: str
    state: State
    detail: str = ""


@dataclass(frozen=True)
class ApplyResult:
    """How every step ended on every node."""

    results: tuple[StepResult, ...]

    @property
    def changed(self) -> int:
        """Number of steps that changed something."""
        return sum(r.state == "changed" for r in self.results)

    def __str__(self) -> str:
        nodes = len({r.node for r in self.results})
        return f"{format_count(self.changed, 'change')} on {format_count(nodes, 'node')}"


def apply(desired: Desired, connect: Connect, report: Report = emit) -> ApplyResult:
    """Bring all nodes to the desired state."""
    recorder = _Recorder(report)
    with Sessions(connect) as sessions:
        facts = _collect_all(desired, sessions, recorder)
        planned = plan_steps(facts, desired)
        try:
            _execute_all(choose_cgroup(facts, desired), facts, planned, sessions, recorder)
        except BootstrapError as error:
            raise _add_cgroup_fix(error) from error
    return ApplyResult(tuple(recorder.results))


def _collect_all(desired: Desired, sessions: Sessions, report: Report) -> dict[str, Facts]:
    def read(node: Node) -> Facts:
        report(Event("bootstrap", node.name, "facts", "start"))
        return collect_facts(sessions.open(node), node.name, registry.build_probe(node, desired))

    nodes = desired.inventory.nodes
    return dict(zip((n.name for n in nodes), wait_for_all([sessions.submit(read, n) for n in nodes]), strict=True))


def _execute_all(desired: Desired, facts: dict[str, Facts], planned: Plan, sessions: Sessions, report: Report) -> None:
    controller, others = desired.inventory.controller, [n for n in desired.inventory.nodes if n.role != "controller"]

    def execute(steps: Sequence[Step]) -> Callable[[Node], None]:
        def on_node(node: Node) -> None:
            execute_steps(sessions.open(node), node.name, _select(planned, node, steps), report)

        return on_node

    servers = {served.node for served in desired.inventory.served}
    for serves in (True, False):
        mounting = [n for n in desired.inventory.nodes if (n.name in servers) == serves]
        wait_for_all([sessions.submit(execute(registry.STORAGE), n) for n in mounting])
    check_storage(desired, sessions, report)
    shipped = sessions.submit(execute(registry.SHIPPED), controller)
    control = sessions.submit(execute((*registry.BASE, *registry.CONTROL)), controller)
    wait_for_all([control, *(sessions.submit(execute(registry.BASE), n) for n in others)])
    wait_for_all([sessions.submit(execute(registry.MEMBERS), n) for n in others])
    _wait_for_nodes(desired, facts, planned, sessions, report)
    wait_for_all([shipped])


def _wait_for_nodes(
    desired: Desired, facts: dict[str, Facts], planned: Plan, sessions: Sessions, report: Report
) -> None:
    controller = desired.inventory.controller
    states = facts[controller.name].slurm_nodes or {}
    daemon_steps = [step.name for step in (*registry.CONTROL, *registry.MEMBERS)]
    unchanged = not any(
        step.actions for steps in planned.values() for name, step in steps.items() if name in daemon_steps
    )
    if unchanged and all(n.name in states and states[n.name].usable for n in desired.inventory.compute):
        report(Event("bootstrap", controller.name, NODES_STEP, "ok"))
        return
    report(Event("bootstrap", controller.name, NODES_STEP, "start", "wait until Slurm can use every node"))
    resumed = wait_for_nodes(desired.inventory, sessions.open)
    state: State = "changed" if resumed else "ok"
    report(Event("bootstrap", controller.name, NODES_STEP, state, f"resumed {', '.join(resumed)}" if resumed else ""))


def _select(planned: Plan, node: Node, steps: Sequence[Step]) -> list[PlannedStep]:
    return [planned[node.name][s.name] for s in steps if s.name in planned[node.name]]


def _add_cgroup_fix(error: BootstrapError) -> BootstrapError:
    """Return the error, with the setting that runs jobs without limits if slurmd rejects the cgroups.

    It is only named: a user who can make an error mention cgroups must not be able to lift everyone's limits.
    """
    if error.step not in ("compute", NODES_STEP) or not any(word in error.line for word in ("cgroup", "Hybrid mode")):
        return error
    return BootstrapError(error.node, error.step, error.line, error.log, error.fix or UNLIMITED_FIX)


class _Recorder:
    """A reporter that forwards events and records the end state of every step."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = Lock()
        self._results: dict[tuple[str, str], StepResult] = {}

    def __call__(self, event: Event) -> None:
        with self._lock:
            if event.state != "start":
                self._results[event.node, event.step] = StepResult(event.node, event.step, event.state, event.detail)
        self._report(event)

    @property
    def results(self) -> list[StepResult]:
        return list(self._results.values())
