"""List the running jobs of a cluster before teardown, which refuses to end them unless forced."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from cluster.inventory import Inventory
from cluster.plural import format_count
from infra.engine.command_line import format_command
from infra.engine.stop import Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.shell import read_inventory, unattended
from infra.targets.mixins import OnThisMachine
from infra.targets.target import Deployment, Target
from muster.commands.failure import explain_failure
from slurm.control.named_jobs import LIST_RUNNING, RunningJobs, parse_running

_QUERY_TIMEOUT_S = 5.0
_MAX_SHOWN = 5


@dataclass(frozen=True)
class ClusterJobs:
    """The running jobs of a cluster, or why they are unknown."""

    running: tuple[str, ...] = ()
    """Jobs as messages show them; not all if there are very many, see `more`."""
    more: int = 0
    """Number of running jobs that are not in `running`."""
    unknown: str = ""
    """Why the jobs could not be listed; empty if they were."""

    def refusal(self, name: str) -> Stop | None:
        """Return the error that refuses to remove stack `name` without FORCE=1; None if it may be removed."""
        forced = format_command("teardown", name, "FORCE=1")
        if self.unknown:
            return Stop(f"{self.unknown}; nothing was removed", f"to remove it even if jobs are running: `{forced}`")
        if not self.running:
            return None
        return Stop(
            f"stack {name} has {self._count}: {self._list(_MAX_SHOWN)}; nothing was removed",
            f"wait until they end, or remove the cluster even if jobs are running: `{forced}`",
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes for the receipt of a cluster that was removed by force."""
        if self.unknown:
            return (f"removed by force: {self.unknown}",)
        if not self.running:
            return ()
        return (f"{self._count} ended: {self._list(len(self.running))}",)

    @property
    def _count(self) -> str:
        return format_count(len(self.running) + self.more, "running job")

    def _list(self, at_most: int) -> str:
        shown = self.running[:at_most]
        left = len(self.running) + self.more - len(shown)
        return ", ".join(shown) + (f" and {left} more" if left else "")


def list_cluster_jobs(stack: StackHome, target: Target, deployment: Deployment) -> ClusterJobs:
    """Return the running jobs of a cluster, or why they are unknown."""
    return _on_this_machine(stack) if isinstance(target, OnThisMachine) else _in_cloud(stack, target, deployment)


def find_next_job_id(target: Target, deployment: Deployment) -> int | None:
    """Return the id that the next job of a cluster would get; None if the cluster does not answer."""
    try:
        return target.queue(deployment).next_job_id()
    except ResourceError:
        return None


def describe_job_ids(next_id: int | None) -> tuple[str, ...]:
    """Return the note for a receipt of kept storage: the next cluster gives its jobs the same ids again."""
    if next_id == 1:
        return ()
    start = "write `extra: {FirstJobId: N}` under `slurm:`, with N above every id so far,"
    if next_id:
        start = f"write `extra: {{FirstJobId: {next_id}}}` under `slurm:`"
    return (
        "job ids start at 1 again on the next cluster: jobs may overwrite files of earlier ones that are named by "
        f"their id, such as train-1.out. To continue, {start} before the next `up`",
    )


def _on_this_machine(stack: StackHome) -> ClusterJobs:
    """Return the jobs of a cluster on this machine; if it does not answer, it is treated as idle."""
    try:
        inventory = read_inventory(stack)
        line = unattended(stack, inventory.controller.name, "root", [LIST_RUNNING])
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=_QUERY_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ClusterJobs()
    return _describe_jobs(parse_running(done.stdout), inventory) if done.returncode == 0 else ClusterJobs()


def _in_cloud(stack: StackHome, target: Target, deployment: Deployment) -> ClusterJobs:
    """Return the jobs of a cloud cluster; if it does not answer, they are unknown, because they may be expensive."""
    try:
        jobs = target.queue(deployment).running()
    except ResourceError as problem:
        stop = explain_failure(problem)
        return ClusterJobs(unknown=stop.what if stop else str(problem))
    try:
        return _describe_jobs(jobs, read_inventory(stack))
    except (OSError, ValueError):
        return _describe_jobs(jobs, None)


def _describe_jobs(jobs: RunningJobs, inventory: Inventory | None) -> ClusterJobs:
    # The test job of an interrupted `up` is not a user's job.
    groups = (
        {*(node.group for node in inventory.nodes), *(nodes.group for nodes in inventory.sets)} if inventory else set()
    )
    tests = {f"ready-{group}" for group in groups}
    running = tuple(f"{job.id} {job.name} ({job.user})" for job in jobs.listed if job.name not in tests)
    return ClusterJobs(running, jobs.more)
