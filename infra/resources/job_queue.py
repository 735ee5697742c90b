"""The job queue of a running cluster: its running jobs, and how to drain nodes before they are removed.

A cluster whose queue does not answer does not count as idle. Without a running slurmctld, nodes count as idle only if
no job can be on them: the controller is gone and the queue with it, no compute node runs, or the stack's state holds no
Slurm cluster yet because its first `up` was interrupted. Otherwise jobs may still be running, and only FORCE=1 removes
their nodes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bootstrap.transport.base import Completed, TransportError
from infra.resources.error import ResourceError
from slurm.control import config, jobs, named_jobs
from slurm.control.jobs import LEAVING
from slurm.control.named_jobs import RunningJobs
from slurm.hostlist import expand

QUERY_TIMEOUT_S = 30.0
# Between TERM and KILL a job has slurm.kill_wait_s, by default 30 s.
_EMPTY_TIMEOUT_S = 60.0
_SLURM_RESOURCE = ":SlurmCluster"


class JobQueue(Protocol):
    """The jobs of a cluster; every method raises ResourceError if the queue does not answer."""

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of jobs on these nodes, by node; nodes without a job are not in it, and of many jobs some."""
        ...

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the running jobs of these users, by user; users without a job are not in it."""
        ...

    def running(self) -> RunningJobs:
        """Return the running jobs: all of them, or if there are very many, some and the number of the others."""
        ...

    def release(self) -> str:
        """Return the release of Slurm that slurmctld runs, such as 24.11; empty if none runs."""
        ...

    def next_job_id(self) -> int | None:
        """Return the id that the next job will get; None if no slurmctld runs."""
        ...

    def drain(self, nodes: Sequence[str], reason: str = LEAVING) -> tuple[str, ...]:
        """Drain nodes that will be removed; return those that muster drained, to resume if they are not removed."""
        ...

    def set_aside(self, reasons: Mapping[str, str]) -> tuple[str, ...]:
        """Drain nodes, each with its own reason; return those that were in service."""
        ...

    def requeue(self, nodes: Sequence[str]) -> None:
        """Requeue the jobs on these nodes, and wait until the nodes are empty."""
        ...

    def resume(self, nodes: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class QueueSigns:
    """What shows from outside whether a cluster has jobs, without a query to Slurm."""

    controller: bool
    """Whether the controller's machine exists, running or not."""
    daemon: bool
    """Whether slurmctld runs on it."""
    compute: bool
    """Whether at least one compute node runs."""
    bootstrapped: bool
    """Whether the stack's state holds a Slurm cluster."""


def judge_queue(signs: QueueSigns) -> Literal["ask", "idle", "unknown"]:
    """Return `ask` if slurmctld runs; otherwise whether the nodes are idle or may have jobs."""
    if signs.daemon:
        return "ask"
    return "unknown" if signs.controller and signs.compute and signs.bootstrapped else "idle"


class Shell(Protocol):
    """The part of a transport that the queue needs."""

    def run(self, script: str, *, timeout: float) -> Completed: ...

    def close(self) -> None: ...


class SlurmQueue:
    """The queue of a cluster whose slurmctld runs; `connect` opens a shell as root on the controller."""

    def __init__(self, connect: Callable[[], Shell]) -> None:
        self._connect = connect

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        return jobs.parse_on_nodes(self._run(jobs.list_on_nodes(nodes)), nodes)

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        by_user = jobs.parse_pairs(self._run(jobs.list_by_user(users)))
        return {user: by_user[user] for user in users if user in by_user}

    def running(self) -> RunningJobs:
        return named_jobs.parse_running(self._run(named_jobs.LIST_RUNNING))

    def release(self) -> str:
        return config.read_release(self._run(shlex.join(config.SHOW_CONFIG)))

    def next_job_id(self) -> int | None:
        return config.read_next_job_id(self._run(shlex.join(config.SHOW_CONFIG)))

    def drain(self, nodes: Sequence[str], reason: str = LEAVING) -> tuple[str, ...]:
        return expand(self._run(jobs.drain(nodes, reason)).strip())

    def set_aside(self, reasons: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(self._run(jobs.set_aside(reasons)).split())

    def requeue(self, nodes: Sequence[str]) -> None:
        self._run(jobs.requeue(nodes, _EMPTY_TIMEOUT_S), timeout=_EMPTY_TIMEOUT_S + QUERY_TIMEOUT_S)

    def resume(self, nodes: Sequence[str]) -> None:
        self._run(jobs.resume(nodes))

    def _run(self, script: str, timeout: float = QUERY_TIMEOUT_S) -> str:
        try:
            transport = self._connect()
            try:
                done = transport.run(script, timeout=timeout)
            finally:
                transport.close()
        except TransportError as error:
            raise _no_answer(error.line) from error
        if done.code != 0:
            raise _no_answer(done.err.strip())
        return done.out


class NoQueue:
    """The queue of a cluster on which no job can be running: there is nothing to query and nothing to drain."""

    def jobs(self, _nodes: Sequence[str]) -> dict[str, list[str]]:
        return {}

    def jobs_of(self, _users: Sequence[str]) -> dict[str, list[str]]:
        return {}

    def running(self) -> RunningJobs:
        return RunningJobs()

    def release(self) -> str:
        return ""

    def next_job_id(self) -> int | None:
        return None

    def drain(self, _nodes: Sequence[str], _reason: str = LEAVING) -> tuple[str, ...]:
        return ()

    def set_aside(self, _reasons: Mapping[str, str]) -> tuple[str, ...]:
        return ()

    def requeue(self, nodes: Sequence[str]) -> None: ...

    def resume(self, nodes: Sequence[str]) -> None: ...


class UnknownQueue:
    """The queue of a cluster on which jobs may be running, but whose slurmctld does not answer."""

    def __init__(self, why: str) -> None:
        self._why = why

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        raise ResourceError(
            "groups",
            f"cannot check whether jobs are running on {', '.join(nodes)}: {self._why}",
            "if they are idle, run it with `FORCE=1`",
        )

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        raise ResourceError(
            "users",
            f"cannot check whether jobs of {', '.join(users)} are running: {self._why}",
            "if none are, run it with `FORCE=1`",
        )

    def running(self) -> RunningJobs:
        raise ResourceError(
            "", f"cannot check whether jobs are running: {self._why}", "if none are, run it with `FORCE=1`"
        )

    def release(self) -> str:
        return ""

    def next_job_id(self) -> int | None:
        return None

    def drain(self, nodes: Sequence[str], _reason: str = LEAVING) -> tuple[str, ...]:
        raise ResourceError("groups", f"{', '.join(nodes)} cannot be drained: {self._why}", "use `FORCE=1`")

    def set_aside(self, reasons: Mapping[str, str]) -> tuple[str, ...]:
        raise ResourceError(
            "groups", f"{', '.join(reasons)} cannot be drained: {self._why}", "check with `make status`"
        )

    def requeue(self, nodes: Sequence[str]) -> None: ...

    def resume(self, nodes: Sequence[str]) -> None: ...


def holds_slurm_cluster(state: Path) -> bool:
    """Return whether a stack's state holds a Slurm cluster; an unreadable state may hold one."""
    try:
        latest = json.loads(state.read_text())["checkpoint"].get("latest") or {}
        return any(item["type"].endswith(_SLURM_RESOURCE) for item in latest.get("resources") or [])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError):
        return True


def _no_answer(error: str) -> ResourceError:
    return ResourceError(
        "controller", f"the job queue does not answer: {error}", "check with `make status`, or use `FORCE=1`"
    )
