"""Training jobs on a cluster under test: submit, look at the run's folder, wait for a step, compare what came out."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from typing import Any

from tests.harness import Stack, wait_until

TRAIN = "/shared/muster/slurm/jobs/train.sbatch"
SMALL = ("tiny-llama", "batch.micro=2", "metrics.every=1", "checkpoint.every=10")


@dataclass(frozen=True)
class Job:
    """A submitted training job; its run folder is the same after every requeue."""

    stack: Stack
    number: str
    folder: str

    def read(self, file: str) -> str:
        return self.stack.ssh("login", f"cat {self.folder}/{file} 2>/dev/null || true")

    @property
    def log(self) -> str:
        return self.stack.ssh("login", f"cat ~/train-{self.number}.out 2>/dev/null || true")

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.read("events.jsonl").splitlines()]

    def losses(self) -> dict[int, float]:
        lines = [json.loads(line) for line in self.read("metrics/rank-00000.jsonl").splitlines()]
        return {line["step"]: line["loss"] for line in lines}

    def state(self) -> str:
        return self.stack.ssh("login", f"sacct -X -n -P -o State -j {self.number} | tail -n 1")

    def restarts(self) -> int:
        """How often the queue has given the job back."""
        shown = self.stack.ssh("login", f"scontrol show job {self.number} | grep -o 'Restarts=[0-9]*'")
        return int(shown.partition("=")[2])

    def shards(self, step: int) -> dict[str, list[str]]:
        """Checksums of every rank's part of a checkpoint: weights and optimizer, byte for byte."""
        files = json.loads(self.read(f"checkpoints/step-{step:08d}/manifest.json"))["files"]
        return {name: entry["sha256"] for name, entry in files.items() if name.startswith("shard-")}

    def wait_for_checkpoint(self, step: int, seconds: float = 120) -> None:
        path = f"{self.folder}/checkpoints/step-{step:08d}/manifest.json"
        wait_until(lambda: self._there(path), f"checkpoint {step} of job {self.number}\n{self.log}", seconds)

    def wait_for_event(self, kind: str, after: float, seconds: float = 120) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [event for event in self.events() if event["event"] == kind and event["time"] > after]
            if found:
                return found[0]
            time.sleep(0.5)
        raise AssertionError(f"no event {kind} of job {self.number} within {seconds:g} s\n{self.log}")

    def wait(self, seconds: float = 180) -> str:
        """Until the job has left the queue; how it ended."""
        wait_until(lambda: not self._queued(), f"end of job {self.number}\n{self.log}", seconds)
        return self.state()

    def _there(self, path: str) -> bool:
        return self.stack.ssh("login", f"test -e {path} && echo yes || true") == "yes"

    def _queued(self) -> bool:
        return self.stack.ssh("login", f"squeue -h -o %T -j {self.number} 2>/dev/null || true") != ""


def submit(stack: Stack, name: str, *settings: str, options: str = "", variables: str = "") -> Job:
    """Runs in ~/runs/<name>: given again, a second job goes on where the first one stopped."""
    folder = f"/shared/home/muster/runs/{name}"
    words = shlex.join([*SMALL, *settings])
    line = f"cd ~ && {variables} RUN_FOLDER={folder} sbatch --parsable {options} {TRAIN} {words}"
    return Job(stack, stack.ssh("login", line), folder)
