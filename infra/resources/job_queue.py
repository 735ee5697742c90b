"""The running cluster's job queue, asked over SSH with the access files of its stack, or as its target asks.

Who cannot be asked is not idle. Without a running slurmctld, nodes count as idle only where no job can be on them: the
controller's container is gone (the queue with it), no compute node runs, or the stack's state holds no Slurm cluster
yet (its first `up` was stopped). Else jobs may go on without slurmctld, and only FORCE=1 takes their nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from bootstrap.transport.base import Completed, TransportError
from infra.resources.problem import Problem
from slurm.control import jobs
from slurm.control.jobs import RunningJob

ASK_TIMEOUT_S = 30.0
# Between TERM and KILL a job has slurm.kill_wait_s, 30 by default.
_EMPTY_S = 60.0
_SLURM_RESOURCE = ":SlurmCluster"

RUNNING, running_in = jobs.LIST_RUNNING, jobs.parse_running


class JobQueue(Protocol):
    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """Those of the nodes that run jobs, and the jobs' ids."""
        ...

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        """Those of the users whose jobs run, and the jobs' ids."""
        ...

    def running(self) -> tuple[RunningJob, ...]:
        """All of them."""
        ...

    def drain(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Those of the nodes that are drained for us now: the ones to resume if they stay after all."""
        ...

    def set_aside(self, reasons: Mapping[str, str]) -> tuple[str, ...]:
        """Drains nodes, each for its reason; those that were not away already."""
        ...

    def requeue(self, nodes: Sequence[str]) -> None:
        """Gives the jobs on the nodes back to the queue, and waits until the nodes are empty."""
        ...

    def resume(self, nodes: Sequence[str]) -> None: ...


@dataclass(frozen=True)
class Seen:
    """What can be seen of a cluster's queue without asking it."""

    controller: bool
    """Its container exists, whether it runs or not."""
    daemon: bool
    """slurmctld runs in it."""
    compute: bool
    """At least one compute node runs."""
    bootstrapped: bool
    """The stack's state holds a Slurm cluster."""


def verdict(seen: Seen) -> Literal["ask", "idle", "unknown"]:
    if seen.daemon:
        return "ask"
    return "unknown" if seen.controller and seen.compute and seen.bootstrapped else "idle"


class Shell(Protocol):
    """As much of a transport as a question takes."""

    def run(self, script: str, *, timeout: float) -> Completed: ...

    def close(self) -> None: ...


class SlurmQueue:
    def __init__(self, connect: Callable[[], Shell]) -> None:
        """`connect` reaches the controller, as root."""
        self._connect = connect

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        return jobs.parse_pairs(self._run(jobs.list_on_nodes(nodes)))

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        everybody = jobs.parse_pairs(self._run(jobs.LIST_BY_USER))
        return {user: everybody[user] for user in users if user in everybody}

    def running(self) -> tuple[RunningJob, ...]:
        return running_in(self._run(RUNNING))

    def drain(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._run(jobs.drain(nodes)).split())

    def set_aside(self, reasons: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(self._run(jobs.set_aside(reasons)).split())

    def requeue(self, nodes: Sequence[str]) -> None:
        self._run(jobs.requeue(nodes, _EMPTY_S), timeout=_EMPTY_S + ASK_TIMEOUT_S)

    def resume(self, nodes: Sequence[str]) -> None:
        self._run(jobs.resume(nodes))

    def _run(self, script: str, timeout: float = ASK_TIMEOUT_S) -> str:
        try:
            transport = self._connect()
            try:
                done = transport.run(script, timeout=timeout)
            finally:
                transport.close()
        except TransportError as silent:
            raise _no_answer(silent.line) from silent
        if done.code != 0:
            raise _no_answer(done.err.strip())
        return done.out


class NoQueue:
    """No slurmctld and no job can be running: nothing to ask, nothing to drain."""

    def jobs(self, _nodes: Sequence[str]) -> dict[str, list[str]]:
        return {}

    def jobs_of(self, _users: Sequence[str]) -> dict[str, list[str]]:
        return {}

    def running(self) -> tuple[RunningJob, ...]:
        return ()

    def drain(self, _nodes: Sequence[str]) -> tuple[str, ...]:
        return ()

    def set_aside(self, _reasons: Mapping[str, str]) -> tuple[str, ...]:
        return ()

    def requeue(self, nodes: Sequence[str]) -> None: ...

    def resume(self, nodes: Sequence[str]) -> None: ...


class UnknownQueue:
    """Jobs may be running, but slurmctld cannot be asked: nobody can say that its nodes are idle."""

    def __init__(self, why: str) -> None:
        self._why = why

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        raise Problem(
            "groups",
            f"whether jobs run on {', '.join(nodes)} cannot be asked: {self._why}",
            "if they are idle, run it with `FORCE=1`",
        )

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        raise Problem(
            "users",
            f"whether jobs of {', '.join(users)} run cannot be asked: {self._why}",
            "if none do, run it with `FORCE=1`",
        )

    def running(self) -> tuple[RunningJob, ...]:
        raise Problem("", f"whether jobs run cannot be asked: {self._why}", "if none do, run it with `FORCE=1`")

    def drain(self, nodes: Sequence[str]) -> tuple[str, ...]:
        raise Problem("groups", f"{', '.join(nodes)} cannot be drained: {self._why}", "use `FORCE=1`")

    def set_aside(self, reasons: Mapping[str, str]) -> tuple[str, ...]:
        raise Problem("groups", f"{', '.join(reasons)} cannot be drained: {self._why}", "look with `make status`")

    def requeue(self, nodes: Sequence[str]) -> None: ...

    def resume(self, nodes: Sequence[str]) -> None: ...


def bootstrapped(state: Path) -> bool:
    """Whether a stack's state holds a Slurm cluster; one that cannot be read may."""
    try:
        latest = json.loads(state.read_text())["checkpoint"].get("latest") or {}
        return any(one["type"].endswith(_SLURM_RESOURCE) for one in latest.get("resources") or [])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError):
        return True


def _no_answer(what: str) -> Problem:
    return Problem("controller", f"the job queue does not answer: {what}", "look with `make status`, or use `FORCE=1`")
