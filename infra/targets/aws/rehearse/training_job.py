"""A job of the bundled trainer in a rehearsal: one rank per node, on CPUs, with a model of a few hundred kilobytes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.rehearsed_slurm import RehearsedSlurm, limit_job_s, name_job

STEPS = 40
"""Steps of a job that is to finish."""
ENDLESS = 1_000_000
"""More steps than a job can do before it is stopped."""
_SCRIPT = "/shared/muster/slurm/jobs/train.sbatch"
_PRESET = "tiny-llama"
# Machines of a rehearsal have no GPU that computes, and as little memory as one rank and its launcher need.
_RANKS_PER_NODE = 1
_POLL_S = 1.0

Event = dict[str, Any]


@dataclass(frozen=True)
class TrainingJob:
    """A submitted training job; its run folder stays the same when it is requeued."""

    slurm: RehearsedSlurm
    number: str

    @property
    def folder(self) -> str:
        return f"~{self.slurm.user}/runs/train-{self.number}"

    def read_events(self) -> list[Event]:
        """Return what the trainer has recorded so far."""
        return parse_events(self.slurm.run(f"cat {self.folder}/events.jsonl 2>/dev/null || true"))

    def wait_for_event(self, kind: str, number: int = 1, longer_s: float = 0) -> Event:
        """Wait until an event has been recorded for the given time, and return it; raise Stop if that does not happen.

        `longer_s` is what the scenario adds to the usual limit of a job.
        """
        limit_s = limit_job_s(self.slurm.instances.clock.speed) + longer_s
        deadline = time.monotonic() + limit_s
        while (event := select_event(self.read_events(), kind, number)) is None:
            if time.monotonic() > deadline:
                what = f"job {self.number} has no event {kind!r} number {number} after {limit_s:.0f} s"
                raise Stop(f"{what}\n{self.slurm.read_output(self.number)}", code=FAILED)
            time.sleep(_POLL_S)
        self.slurm.instances.timeline.record(name_job(self.number), f"{kind} at step {event.get('step', 0)}")
        return event

    def wait_for_end(self, longer_s: float = 0) -> str:
        """Wait until all steps are done and return the job's output; raise Stop if the job failed or did fewer.

        `longer_s` is what the scenario adds to the usual limit of a job.
        """
        output = self.slurm.wait_for_end(self.number, longer_s)
        if f"finished: all {STEPS} steps done" not in output:
            raise Stop(f"job {self.number} did not do all {STEPS} steps:\n{output}", code=FAILED)
        return output

    def stop(self) -> None:
        """Let the trainer save and end the job."""
        self.slurm.run(f"echo rehearsed >{self.folder}/stop")


def submit_training(slurm: RehearsedSlurm, group: str, nodes: int, steps: int) -> TrainingJob:
    """Submit a training job."""
    # Only the last step is saved, so that a checkpoint before it is the one of a stop.
    settings = (f"steps={steps}", "checkpoint.every=0", "metrics.every=1")
    variables = f"--export=ALL,RANKS_PER_NODE={_RANKS_PER_NODE}"
    return TrainingJob(slurm, slurm.sbatch(group, nodes, variables, _SCRIPT, _PRESET, *settings))


def parse_events(text: str) -> list[Event]:
    """Return the events of a run; a line that is still being written is left out."""
    lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
    return [json.loads(line) for line in lines]


def select_event(events: Sequence[Event], kind: str, number: int) -> Event | None:
    """Return the event of a kind with this number, counted from 1; None if there are fewer."""
    matching = [event for event in events if event["event"] == kind]
    return matching[number - 1] if len(matching) >= number else None


def check_save(saved: Event, loaded: Event, noticed_at: float, notice_s: float) -> None:
    """Raise Stop if a run did not save within the notice, or did not continue where it had saved."""
    took_s = saved["time"] - noticed_at
    if took_s > notice_s:
        raise Stop(f"the trainer saved only {took_s:.0f} s after the notice; allowed: {notice_s:.0f} s", code=FAILED)
    if loaded["step"] != saved["step"]:
        what = f"the trainer saved step {saved['step']} but continued at step {loaded['step']}"
        raise Stop(what, code=FAILED)
