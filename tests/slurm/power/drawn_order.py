"""A cluster whose cloud answers in an order drawn from a seed: real power programs, moto, and a clock of its own.

slurmctld is a model: it allocates nodes to jobs, runs the power programs, and requeues the job of a lost node.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from moto.ec2.models.instances import Instance, InstanceBackend

from infra.targets.aws.launcher.node_names import read_node_name
from infra.targets.aws.rehearse.delays import Clock as Delays
from infra.targets.aws.rehearse.moto_hooks import list_late
from slurm.power.programs import resume, resume_failed, suspend
from slurm.power.sweep import sweep
from tests.moto_server import Moto
from tests.slurm.power.cluster import AwsContext, Clock, FakeSlurm

OFF, ON, BUSY = "IDLE+CLOUD+POWERED_DOWN", "IDLE+CLOUD", "ALLOCATED+CLOUD"
COMING, GOING = "ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", "IDLE+CLOUD+POWERING_DOWN"
SWEEP_S, SET_UP_S = 60.0, 90.0
# Of slurm.conf: how long slurmctld waits for an idle node, for a node that ends, and for the job of a lost node.
SUSPEND_S, SUSPEND_TIMEOUT_S, REQUEUE_S = 300.0, 150.0, 120.0
# slurmctld starts its programs within this time.
PROGRAM_S = 10.0
# Share of sweeps before which slurmctld has noticed by itself that a machine is gone.
NOTICED = 0.2


@dataclass
class Job:
    """A job that needs these nodes for some seconds."""

    nodes: Sequence[str]
    runs_s: float
    submitted_at: float
    state: str = "pending"
    number: int = 0
    """Number of its attempts."""


@dataclass
class DrawnOrder:
    """Runs jobs on a cluster whose events are drawn from a seed, and records in which order they happen."""

    seed: int
    context: AwsContext
    slurm: FakeSlurm
    clock: Clock
    jobs: list[Job] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    """Node name of every instance that was launched."""
    mistakes: list[str] = field(default_factory=list)
    instances: dict[str, Any] = field(default_factory=dict)
    """moto's instances by id."""
    listed_at: dict[str, float] = field(default_factory=dict)
    listing_factor: float = 1.0

    def __post_init__(self) -> None:
        self.began, self._number, self._swept = self.clock.now(), 0, 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._delays = Delays(self.seed, 1)
        self.draws = random.Random(f"{self.seed} order")
        self.slurm.when_updated = self._follow

    def run(self, until_s: float) -> None:
        """Let everything happen that happens within these seconds of the cluster's clock."""
        for job in self.jobs:
            self.after(job.submitted_at, self._schedule)
        self.after(self.draws.uniform(0, SWEEP_S), self._sweep)
        while self._queue and self._queue[0][0] <= self.began + until_s:
            at, _, act = heapq.heappop(self._queue)
            self.clock.t = max(self.clock.t, at)
            act()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.clock.now() + seconds, self._number, act))

    def lose(self, node: str) -> None:
        """End the machine of a node as a failure of its hardware does."""
        if machine := self.find(node):
            self.events.append(f"{node} lost")
            # moto's own method: ours would take it for a decision of the programs.
            machine._state.name, machine._state.code = "terminated", 48

    def find(self, node: str) -> Any:
        """Return the running instance of a node."""
        return next((i for i in self.instances.values() if _name(i) == node and _runs(i)), None)

    def count_running(self) -> int:
        return sum(map(_runs, self.instances.values()))

    def hide_unlisted(self, reservations: list[Any]) -> list[Any]:
        for reservation in reservations:
            reservation.instances = [raw for raw in reservation.instances if self.is_listed(raw.id)]
        return [reservation for reservation in reservations if reservation.instances]

    def is_listed(self, instance_id: str) -> bool:
        return self.clock.now() >= self.listed_at[instance_id]

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Let moto's instances start, be listed and end on this clock."""
        run_instances, terminate = InstanceBackend.run_instances, Instance.terminate

        def launch(backend: Any, *args: Any, **kwargs: Any) -> Any:
            reservation = run_instances(backend, *args, **kwargs)
            for raw in reservation.instances:
                self._launch(raw)
            return reservation

        def end(raw: Any) -> Any:
            if _runs(raw) and self.slurm.states[_name(raw)] == BUSY:
                self.mistakes.append(f"{_name(raw)} was ended under a job")
            return terminate(raw)

        InstanceBackend.run_instances, Instance.terminate = launch, end
        try:
            with list_late(self):
                yield
        finally:
            InstanceBackend.run_instances, Instance.terminate = run_instances, terminate

    def _launch(self, raw: Any) -> None:
        name, now = _name(raw), self.clock.now()
        if self.find(name):
            self.mistakes.append(f"{name} was launched twice")
        self.launches.append(name)
        self.events.append(f"{name} launched")
        self.instances[raw.id] = raw
        raw.launch_time = datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
        key = f"{name}#{self.launches.count(name)}"
        listing_s = self._delays.draw("instance listing", key) * self.listing_factor
        self.listed_at[raw.id] = now + listing_s
        self.after(listing_s, partial(self.events.append, f"{name} listed"))
        boot_s = self._delays.draw("instance pending", key) + self._delays.draw("large operating system boot", key)
        self.after(boot_s + SET_UP_S, partial(self._register, raw))

    def _register(self, raw: Any) -> None:
        name = _name(raw)
        if _runs(raw) and self.slurm.states[name] == COMING:
            self.slurm.states[name] = BUSY
            self.slurm.addresses[name] = raw.private_ip
            self.events.append(f"{name} up")
            self._start_jobs()

    def _sweep(self) -> None:
        sweep(self.context)
        self.events += [f"{name} swept" for name in self.launches[self._swept :]]
        self._swept = len(self.launches)
        self._notice_lost()
        self._schedule()
        self.after(SWEEP_S, self._sweep)

    def _schedule(self) -> None:
        """Allocate nodes to the jobs that wait, and let Slurm start those that are off."""
        for job in self.jobs:
            states = {self.slurm.states[node] for node in job.nodes}
            if job.state == "pending" and self.clock.now() >= self.began + job.submitted_at and states <= {OFF, ON}:
                job.state, job.number = "allocated", job.number + 1
                off = [node for node in job.nodes if self.slurm.states[node] == OFF]
                self.slurm.states |= {node: COMING if node in off else BUSY for node in job.nodes}
                self.after(self.draws.uniform(0, PROGRAM_S), partial(self._resume, job, off))
        self._start_jobs()

    def _resume(self, job: Job, nodes: Sequence[str]) -> None:
        if not nodes:
            return
        listed = ",".join(nodes)
        request = {"job_id": 1, "nodes_resume": listed, "nodes_alloc": ",".join(job.nodes)}
        resume(self.context, nodes, [request])
        attempt = job.number
        self.after(self.slurm.resume_timeout_s, partial(self._give_up, job, attempt))

    def _give_up(self, job: Job, attempt: int) -> None:
        late = [node for node in job.nodes if self.slurm.states[node] == COMING]
        if job.number == attempt and late:
            resume_failed(self.context, late)
            self._mark_down(late, "ResumeTimeout reached")

    def _start_jobs(self) -> None:
        for job in self.jobs:
            if job.state == "allocated" and {self.slurm.states[node] for node in job.nodes} == {BUSY}:
                job.state, attempt = "running", job.number
                self.events.append(f"job on {job.nodes[0]} starts")
                self.after(job.runs_s, partial(self._finish, job, attempt))

    def _finish(self, job: Job, attempt: int) -> None:
        if job.state != "running" or job.number != attempt:
            return
        if all(self.find(node) for node in job.nodes):
            job.state = "completed"
            self.events.append(f"job on {job.nodes[0]} ends")
            self._release(job)

    def _release(self, job: Job) -> None:
        for node in job.nodes:
            if self.slurm.states[node] in (BUSY, COMING):
                self.slurm.states[node] = ON
                self.after(SUSPEND_S, partial(self._suspend_idle, node))

    def _suspend_idle(self, node: str) -> None:
        if self.slurm.states[node] == ON:
            self._power_down(node)

    def _power_down(self, node: str) -> None:
        self.slurm.states[node] = GOING
        self.slurm.reasons.pop(node, None)
        self.after(self.draws.uniform(0, PROGRAM_S), partial(self._suspend, node))
        self.after(SUSPEND_TIMEOUT_S, partial(self._finish_power_down, node))

    def _suspend(self, node: str) -> None:
        suspend(self.context, [node])
        self.events.append(f"{node} suspended")

    def _finish_power_down(self, node: str) -> None:
        self.slurm.states[node] = OFF
        self.slurm.addresses.pop(node, None)
        self._schedule()

    def _notice_lost(self) -> None:
        """Let slurmctld mark nodes down that answered before and have no machine, unless the sweep was faster."""
        for node, state in list(self.slurm.states.items()):
            if state in (ON, BUSY) and self.find(node) is None and self.draws.random() < NOTICED:
                self._mark_down([node], "Not responding")

    def _mark_down(self, nodes: Sequence[str], reason: str) -> None:
        for node in nodes:
            self.slurm.states[node], self.slurm.reasons[node] = "DOWN+CLOUD+NOT_RESPONDING", reason
        self._follow(nodes, "DOWN")

    def _follow(self, nodes: Sequence[str], state: str) -> None:
        """Do what slurmctld does after a change of nodes: requeue the jobs of those that are down, power down."""
        for node in nodes:
            if state == "POWER_DOWN":
                self._power_down(node)
            if state == "DOWN":
                for job in self.jobs:
                    if node in job.nodes and job.state in ("allocated", "running"):
                        self.events.append(f"job on {job.nodes[0]} requeued")
                        self._requeue(job)

    def _requeue(self, job: Job) -> None:
        job.state = "held"
        self._release(job)

        def free() -> None:
            job.state = "pending"
            self._schedule()

        self.after(REQUEUE_S, free)


_Order = TypeVar("_Order", bound=DrawnOrder)


def run_seeds(
    seeds: Sequence[int],
    run: Callable[[int, Moto, Path], _Order],
    check: Callable[[_Order], None],
    aws: Moto,
    folder: Path,
) -> dict[int, list[str]]:
    """Run and check the order of each seed with an empty account; return their events."""
    orders = {}
    for seed in seeds:
        aws.reset()
        order = run(seed, aws, folder / str(seed))
        check(order)
        orders[seed] = order.events
    return orders


def _name(raw: Any) -> str:
    tags = {tag["key"]: tag["value"] for tag in raw.get_tags()}
    return read_node_name(tags, raw.ami_launch_index) or raw.id


def _runs(raw: Any) -> bool:
    return raw._state.name in ("pending", "running")
