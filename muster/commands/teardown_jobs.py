"""The jobs that would end with a cluster: asked before it goes, told when they kept it, noted when they ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from cluster.inventory import Inventory
from infra.engine.stop import Stop
from infra.engine.typed import typed
from infra.home import StackHome
from infra.resources.problem import Problem
from infra.shell import read_inventory, unattended
from infra.targets.target import Deployment, OnThisMachine, Target
from muster.commands.failure import explain_failure
from slurm.control.jobs import LIST_RUNNING, RunningJob, parse_running

_ASK_S = 5.0
_SHOWN = 5


@dataclass(frozen=True)
class ClusterJobs:
    running: tuple[str, ...] = ()
    unknown: str = ""
    """Why nobody could say whether any run."""

    def refusal(self, name: str) -> Stop | None:
        """Why the cluster of stack `name` may not go without FORCE=1."""
        forced = typed("teardown", name, "FORCE=1")
        if self.unknown:
            return Stop(f"{self.unknown}; nothing was removed", f"if no job counts any more: `{forced}`")
        if not self.running:
            return None
        shown = ", ".join(self.running[:_SHOWN])
        shown += f" and {len(self.running) - _SHOWN} more" if len(self.running) > _SHOWN else ""
        return Stop(
            f"stack {name} runs {_counted(self.running)}: {shown}; nothing was removed",
            f"wait for the end, or end what runs with the cluster: `{forced}`",
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """For the receipt of a cluster that went all the same."""
        if self.unknown:
            return (f"removed by force: {self.unknown}",)
        if not self.running:
            return ()
        return (f"{_counted(self.running, 'running ')} ended: {', '.join(self.running)}",)


def list_cluster_jobs(stack: StackHome, target: Target, deployment: Deployment) -> ClusterJobs:
    """Return the jobs of a cluster, or why nobody can say whether any run."""
    return _on_this_machine(stack) if isinstance(target, OnThisMachine) else _in_cloud(stack, target, deployment)


def _on_this_machine(stack: StackHome) -> ClusterJobs:
    """Those of a cluster that answers soon; one that does not is no reason to keep it."""
    try:
        known = read_inventory(stack)
        line = unattended(stack, known.controller.name, "root", [LIST_RUNNING])
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=_ASK_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ClusterJobs()
    return ClusterJobs(_told(parse_running(done.stdout), known)) if done.returncode == 0 else ClusterJobs()


def _in_cloud(stack: StackHome, target: Target, deployment: Deployment) -> ClusterJobs:
    """Ask the queue. Days of many machines may be in a job there: a cluster that cannot be asked is not idle."""
    try:
        found = target.queue(deployment).running()
    except Problem as problem:
        stop = explain_failure(problem)
        return ClusterJobs(unknown=stop.what if stop else str(problem))
    try:
        return ClusterJobs(_told(found, read_inventory(stack)))
    except (OSError, ValueError):
        return ClusterJobs(_told(found, None))


def _told(jobs: Iterable[RunningJob], known: Inventory | None) -> tuple[str, ...]:
    # The job across the nodes with which an interrupted `up` tested them is nobody's work.
    groups = {*(node.group for node in known.nodes), *(one.group for one in known.sets)} if known else set()
    tests = {f"ready-{group}" for group in groups}
    return tuple(f"{job.id} {job.name} ({job.user})" for job in jobs if job.name not in tests)


def _counted(jobs: tuple[str, ...], kind: str = "") -> str:
    return f"{len(jobs)} {kind}{'job' if len(jobs) == 1 else 'jobs'}"
