"""Slurm of a rehearsed cluster, used from its controller: submit jobs, wait for them, and read nodes."""

from __future__ import annotations

import re
import shlex
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.upgrade.steps import STATE
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.disks import run_in
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.timeline import JOB
from slurm.control.jobs import comment_job, explain_waiting, list_steps, show_result, show_state
from slurm.control.nodes import ABSENT, NodeState, parse_nodes, show_nodes

REPLACED_S = 600.0
"""What a job waits for if a machine is replaced: sweeps, their grace periods, the credential of a requeued job."""
_POLL_S = 1.0
# What AWS takes at most until a node runs (delays.py), and what this machine takes.
_AWS_JOB_S, _OWN_JOB_S = 480.0, 480.0
# slurmctld saves its state at most every 5 s; the rest is for a machine with other work.
_SAVED_S = 60.0
# Seen in accounting; anything else is a state from which a job may still end.
_END_STATES = re.compile(
    r"COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED|REVOKED"
)


@dataclass(frozen=True)
class RehearsedSlurm:
    """The queue and the nodes of a rehearsed cluster."""

    user: str
    """Who submits jobs."""
    instances: Instances

    def submit(self, group: str, nodes: int, command: str, *options: str) -> str:
        """Submit a job that runs a command on each of its nodes, and return its number."""
        return self.submit_script(group, nodes, f"srun {command}", *options)

    def submit_script(self, group: str, nodes: int, script: str, *options: str) -> str:
        """Submit a job whose batch script is given, and return its number."""
        return self.sbatch(group, nodes, *options, "--wrap", script)

    def sbatch(self, group: str, nodes: int, *arguments: str) -> str:
        """Submit a job from the user's home with these arguments of sbatch, and return its number."""
        # A script may name another file of output; `wait_for_end` reads this one.
        line = ["sbatch", "--parsable", "-p", group, "-N", str(nodes), "--output=slurm-%j.out", *arguments]
        job = self.run(f"cd ~{self.user} && runuser -u {self.user} -- {shlex.join(line)}").strip()
        self.instances.timeline.record(name_job(job), "submitted")
        return job

    def wait_for_end(self, job: str, longer_s: float = 0) -> str:
        """Wait until a job has completed and return its output; raise Stop if it failed or is too late.

        `longer_s` is what the scenario adds to the usual limit.
        """
        limit_s = limit_job_s(self.instances.clock.speed) + longer_s
        state = self._poll(lambda: self._read_result(job), has_ended, limit_s)
        output = self.read_output(job)
        if not state.startswith("COMPLETED"):
            queued = self.run(explain_waiting(job))
            raise Stop(f"job {job} did not complete: {state or 'not in accounting'}\n{output}{queued}", code=FAILED)
        return output

    def wait_for_state(self, job: str, state: str) -> None:
        """Wait until squeue shows a job in a state; raise Stop if that does not happen."""
        limit_s = limit_job_s(self.instances.clock.speed)
        last = self._poll(lambda: self.read_state(job), lambda current: current == state, limit_s)
        if last != state:
            raise Stop(f"job {job} is {last or 'not in the queue'} after {limit_s:.0f} s, not {state}", code=FAILED)

    def wait_while(self, job: str, state: str, limit_s: float) -> None:
        """Wait as long as squeue shows a job in a state, but no longer than `limit_s`."""
        self._poll(lambda: self.read_state(job), lambda current: current != state, limit_s)

    def wait_for_step(self, job: str) -> None:
        """Wait until the `srun` of a job has created its step; raise Stop if that does not happen.

        A job is `RUNNING` before that, and its `srun` fails if it finds no controller for half a minute.
        """
        limit_s, step = limit_job_s(self.instances.clock.speed), f"{job}.0"
        steps = self._poll(lambda: self.run(list_steps(job)), lambda lines: step in lines.split(), limit_s)
        if step not in steps.split():
            state = self.read_state(job) or "not in the queue"
            raise Stop(f"job {job} has no step after {limit_s:.0f} s, and is {state}", code=FAILED)

    def wait_until_saved(self, job: str) -> None:
        """Wait until slurmctld has saved the queue as it is now; raise Stop if that does not happen.

        A controller that dies earlier takes the latest changes with it: a job that has just started would be restored
        as one that still waits for its nodes. The comment of a job marks the present state in the saved one.
        """
        mark = f"rehearsal-{uuid.uuid4().hex}"
        self.run(shlex.join(comment_job(job, mark)))
        look = f"grep -qsa {mark} {STATE}/job_state && echo saved || true"
        if not self._poll(lambda: self.run(look), bool, _SAVED_S):
            raise Stop(f"slurmctld has not saved its queue within {_SAVED_S:.0f} s", code=FAILED)

    def wait_for_node(self, name: str, what: str, holds: Callable[[NodeState], bool], limit_s: float) -> NodeState:
        """Wait until a node's state has a property, described by `what`, and return the state; raise Stop if late."""
        deadline = time.monotonic() + limit_s
        while not holds(node := self.read_node(name)):
            if time.monotonic() > deadline:
                state = f"{node}, reason: {node.reason or 'none'}"
                raise Stop(f"{name} {what} is still not true after {limit_s:.0f} s: {state}", code=FAILED)
            time.sleep(_POLL_S)
        return node

    def read_output(self, job: str) -> str:
        """Return what a job has printed so far."""
        return self.run(f"cat ~{self.user}/slurm-{job}.out 2>/dev/null || true")

    def read_output_age(self, job: str) -> float:
        """Return how many seconds ago a job printed last."""
        return float(
            self.run(f"echo $(date +%s.%N) $(stat -c %.Y ~{self.user}/slurm-{job}.out) | awk '{{ print $1 - $2 }}'")
        )

    def read_state(self, job: str) -> str:
        """Return the state of a job in the queue; empty if it is not there."""
        return self.run(show_state(job)).strip()

    def read_node(self, name: str) -> NodeState:
        return parse_nodes(self.run(show_nodes([name]))).get(name, ABSENT)

    def run(self, script: str) -> str:
        """Run a script as root on the controller and return its output."""
        if (controller := self.instances.find("controller")) is None:
            raise Stop("there is no controller any more", code=FAILED)
        return run_in(self.instances.container(controller.id), script)

    def _read_result(self, job: str) -> str:
        """Return the state of a job in the queue or, if it has left the queue, its result in accounting.

        Accounting says `RUNNING` also while a job waits for its nodes' boot, and `NODE_FAIL` of a job that was requeued
        after a node failed, until it starts again.
        """
        text = self.run(f'queued=$({show_state(job)})\necho "$queued"\n{show_result(job)}')
        queued, _, result = (line.strip() for line in text.partition("\n"))
        state = queued or result
        self.instances.timeline.record(name_job(job), state.partition("|")[0].lower() or "submitted")
        return state

    def _poll(self, read: Callable[[], str], ends: Callable[[str], bool], limit_s: float) -> str:
        """Read until the value ends the wait or the time is up; return the last value."""
        deadline = time.monotonic() + limit_s
        while not ends(value := read()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return value


def name_job(job: str) -> str:
    """Return the name of a job in the timeline."""
    return f"{JOB}{job}"


def has_ended(state: str) -> bool:
    """Return whether a job's state in accounting is final."""
    return _END_STATES.match(state) is not None


def limit_job_s(speed: float) -> float:
    """Return the seconds after which a job is given up."""
    return _OWN_JOB_S + _AWS_JOB_S / speed
