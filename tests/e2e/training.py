"""Training jobs on a cluster under test: submit them, wait for a point in the run, and compare results."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.harness import Stack

TRAIN = "/shared/muster/slurm/jobs/train.sbatch"
SMOKE = "/shared/muster/slurm/jobs/smoke.sbatch"
NODES = 2
# Short, because scenarios wait for it; but a node that is only slow on a busy machine must not be taken for dead.
SLURMD_TIMEOUT_S = 20
# A scenario has to interrupt a run after its fifth step and before its last.
STEPS = 40
CHECKPOINT_STEPS = 5
SMALL = ("tiny-llama", "batch.micro=2", "metrics.every=1", f"checkpoint.every={CHECKPOINT_STEPS}")
# For runs that nothing interrupts. By default, the first step measures the CPU and the tenth is profiled; both take
# seconds, in which a scenario can interrupt the run.
QUICK = ("metrics.peak_tflops=1", "metrics.profile_every=0")
STRATEGIES = {
    "ddp": ("parallel.strategy=ddp",),
    "fsdp": ("parallel.strategy=fsdp",),
    "hsdp": ("parallel.strategy=hsdp", "parallel.shard=2"),
}
# Each start of a rank takes 10 s of CPU time. Most scenarios use fsdp, which needs only one rank on each node.
RANKS = {"ddp": 4, "fsdp": 2, "hsdp": 4}
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
# squeue no longer has a job five minutes after its end; then accounting has its state.
STATE = """state=$(squeue -h -t all -o %T -j {0} 2>&1)
    case $state in *Invalid*) sacct -X -n -P -o State -j {0} | tail -n 1 ;; *) echo "$state" ;; esac"""
Test = TypeVar("Test", bound=Callable[..., Any])
Undisturbed = Callable[[str], "Job"]


@dataclass(frozen=True)
class Job:
    """A submitted training job; its run folder is the same after every requeue."""

    stack: Stack
    number: str
    folder: str

    def read(self, file: str) -> str:
        return self.stack.ssh(self.stack.entry, f"cat {self.folder}/{file} 2>/dev/null || true")

    @property
    def log(self) -> str:
        return self.stack.ssh(self.stack.entry, f"cat ~/train-{self.number}.out 2>/dev/null || true")

    @property
    def history(self) -> str:
        """Return the job's log, and what the controller logged about the job and about nodes that did not answer."""
        ask = f"grep -E 'JobId={self.number}\\b|not responding|now responding' /var/log/slurm/slurmctld.log"
        return f"{self.log}\n{self.stack.ssh('controller', ask, user='root', check=False)}"

    def events(self, kind: str) -> list[dict[str, Any]]:
        events = [json.loads(line) for line in self.read("events.jsonl").splitlines()]
        return [event for event in events if event["event"] == kind]

    def losses(self, rank: int = 0) -> dict[int, float]:
        lines = [json.loads(line) for line in self.read(f"metrics/rank-{rank:05d}.jsonl").splitlines()]
        return {line["step"]: line["loss"] for line in lines}

    def shards(self, step: int) -> dict[str, list[str]]:
        """Return the checksums of every rank's part of a checkpoint (weights and optimizer)."""
        files = json.loads(self.read(f"checkpoints/step-{step:08d}/manifest.json"))["files"]
        return {name: entry["sha256"] for name, entry in files.items() if name.startswith("shard-")}

    def restarts(self) -> int:
        """Return how often the job was requeued."""
        shown = self.stack.ssh(self.stack.entry, f"scontrol show job {self.number} | grep -o 'Restarts=[0-9]*'")
        return int(shown.partition("=")[2])

    def excluded_nodes(self) -> str:
        """Return the nodes on which Slurm must not start the job again."""
        shown = self.stack.ssh(self.stack.entry, f"scontrol show job {self.number} | grep -o 'ExcNodeList=[^ ]*'")
        return shown.partition("=")[2]

    def nodes(self) -> list[str]:
        """Wait until the job runs and return its nodes; the first is the head."""
        self.wait_for(f"squeue -h -t running -o %T -j {self.number} | grep -q .", "start")
        return self.stack.ssh(self.stack.entry, f"scontrol show hostnames $(squeue -h -o %N -j {self.number})").split()

    def stop(self, reason: str) -> None:
        self.stack.ssh(self.stack.entry, f"echo {reason} > {self.folder}/stop")

    def wait_for_first_step(self) -> None:
        self.wait_for(f"grep -qs first_step {self.folder}/events.jsonl", "first step")

    def wait_for_checkpoint(self) -> None:
        self.wait_for(f"compgen -G '{self.folder}/checkpoints/step-*/manifest.json'", "first checkpoint")

    def wait_for_requeue(self) -> None:
        self.wait_for(f"scontrol show job {self.number} | grep -q 'Restarts=[1-9]'", "requeue")

    def wait_for_event(self, kind: str, after: float, seconds: float = 600) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if events := [event for event in self.events(kind) if event["time"] > after]:
                return events[0]
            time.sleep(1.0)
        raise self._give_up(f"not within {seconds:g} s: event {kind}")

    def wait(self, seconds: float = 600) -> str:
        """Wait for the end of the job and return its state."""
        self._until(f"sleep 1; {self._end_condition}", "end", seconds)
        return self.stack.ssh(self.stack.entry, STATE.format(self.number))

    def wait_for(self, condition: str, what: str, seconds: float = 600) -> None:
        """Wait until a shell condition holds on the node where users log in; fail if the job ends without it."""
        # A job can look ended for a moment between two attempts. Slurm's commands take more CPU time than conditions.
        ended = f"(( ++polls % 10 == 0 )) && {self._end_condition} && sleep 2 && {self._end_condition}"
        self._until(f"{condition} || {{ {ended}; }}", what, seconds)
        if self.stack.ssh(self.stack.entry, f"{condition} >/dev/null && echo met || true") != "met":
            raise self._give_up(f"ended without {what}")

    @property
    def _end_condition(self) -> str:
        return f"{{ {STATE.format(self.number)}; }} | grep -qE '^({'|'.join(ENDED)})'"

    def _until(self, condition: str, what: str, seconds: float) -> None:
        """Wait for a shell condition by polling on a node, so that one connection serves many polls."""
        ask = shlex.quote(f"until {{ {condition}; }} >/dev/null; do sleep 0.5; done")
        deadline = time.monotonic() + seconds
        while self.stack.ssh(self.stack.entry, f"timeout 30 bash -c {ask} && echo met || true") != "met":
            if time.monotonic() > deadline:
                raise self._give_up(f"not within {seconds:g} s: {what}")

    def _give_up(self, what: str) -> AssertionError:
        """Return an error with the queue and the log, and free the nodes for other jobs."""
        queue = self.stack.ssh(self.stack.entry, "squeue -o '%i %j %q %T %r %N'; sinfo -N", check=False)
        self.stack.ssh(self.stack.entry, f"scancel {self.number}", check=False)
        return AssertionError(f"{what} of job {self.number}\n{queue}\n{self.log}")


def submit(stack: Stack, name: str, strategy: str, *settings: str, options: str = "", variables: str = "") -> Job:
    """Submit a training job that runs in ~/runs/<name>; a second job of the same name resumes the first."""
    folder = f"/shared/home/muster/runs/{name}"
    arguments = shlex.join([*SMALL, f"steps={STEPS}", *STRATEGIES[strategy], *settings])
    ranks = RANKS[strategy] // NODES
    variables = f"RANKS_PER_NODE={ranks} {variables} RUN_FOLDER={folder}"
    number = stack.ssh(stack.entry, f"cd ~ && {variables} sbatch --parsable {options} {TRAIN} {arguments}")
    return Job(stack, number, folder)


def checks(scenario: Callable[..., Any]) -> Callable[[Test], Test]:
    """Name the scenario that a test checks; the test gets its return value as the fixture `result` (conftest.py)."""

    def mark(test: Test) -> Test:
        test.scenario = scenario  # type: ignore[attr-defined]  # an attribute for conftest.py
        return test

    return mark


def completed(job: Job) -> Job:
    """Wait for the job, require that it completed, and return it."""
    assert job.wait() == "COMPLETED", job.log
    return job


def assert_same_end(job: Job, undisturbed: Job) -> None:
    """Require the same losses and last checkpoint as an undisturbed run, bit for bit."""
    assert job.losses() == undisturbed.losses()
    assert job.shards(STEPS) == undisturbed.shards(STEPS)


def assert_whole(job: Job) -> None:
    """Require that every step is recorded once."""
    steps = list(job.losses())
    assert steps == list(range(1, len(steps) + 1))
