"""Measure how long training stops when a rank or a node dies, phase by phase, on a real local cluster.

    python -m benchmarks.recovery [--json FILE]

Three nodes, a job on two of them. First one rank is killed (the ranks start again inside the job), then a whole node
(the job is requeued and starts on the spare node). The clock runs from the kill to the end of the first step after it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.bringup import Cluster, cluster, print_progress
from benchmarks.figures import Figure, report
from slurm.control import jobs

SETTINGS = "tiny-llama parallel.strategy=fsdp batch.micro=2 steps=100000 checkpoint.every=10 metrics.every=10"
JOB = "/shared/muster/slurm/jobs/train.sbatch"
RUN = "/shared/home/muster/runs/recovery"
RANK_AT_MOST_S, NODE_AT_MOST_S = 30.0, 90.0
# (phase, the event that ends it). Ranks that restart inside the job neither queue nor start a new job: detection then
# ends with the next process.
PHASES = (
    ("detect", "job_step_ended"),
    ("schedule", "job_started"),
    ("launch", "process"),
    ("start", "imported"),
    ("rendezvous", "joined"),
    ("build and load", "loaded"),
    ("first step", "first_step"),
)
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Recovery:
    """Seconds of each phase of a recovery."""

    phases: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.phases.values())


def split_into_phases(killed: float, events: list[dict[str, Any]]) -> Recovery:
    """Return the phases: each ends with the first such event after the kill; phases without an event are left out."""
    processes = [{"event": "process", "time": event["began"]} for event in events if event["event"] == "started"]
    later = sorted((e for e in [*events, *processes] if e["time"] > killed), key=lambda event: event["time"])
    first = {event["event"]: event["time"] for event in reversed(later)}
    in_job = "job_step_ended" not in first
    phases = [
        ("detect" if in_job and kind == "process" else name, first[kind]) for name, kind in PHASES if kind in first
    ]
    marks = [killed, *(moment for _, moment in phases)]
    return Recovery({name: after - before for (name, _), (before, after) in zip(phases, pairwise(marks), strict=True)})


def main() -> int:
    """Measure, print the figures and return 1 if one exceeds its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster("bench-recovery", 3) as ours:
        print_progress("up ...")
        ours.muster("up")
        node = start_job(ours)
        print_progress("kill a rank ...")
        rank = measure_recovery(ours, lambda: run_script(ours, node, "pkill -9 -n -f 'python.* -m trainer '", "root"))
        print_progress(f"  {rank.total:.1f} s; kill a node ...")
        machine = measure_recovery(
            ours, lambda: subprocess.run(["docker", "kill", f"muster-{ours.name}-{node}"], check=True)
        )
        print_progress(f"  {machine.total:.1f} s")
        ours.muster("teardown", "--yes", "--force")
    figures = [
        *phase_figures("rank killed", rank, RANK_AT_MOST_S),
        *phase_figures("node killed", machine, NODE_AT_MOST_S),
    ]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def start_job(ours: Cluster) -> str:
    """Start training and return the job's second node: the first holds the rendezvous and the batch script."""
    number = run_script(ours, "login", f"cd ~ && RUN_FOLDER={RUN} sbatch --parsable -N 2 {JOB} {SETTINGS}")
    wait_for(lambda: bool(checkpoints(ours)), "the first checkpoint")
    nodes = run_script(ours, "login", jobs.list_hostnames(number))
    return nodes.split()[1]


def measure_recovery(ours: Cluster, kill: Callable[[], object]) -> Recovery:
    """Kill something after a fresh checkpoint, wait for the next completed step and return the phases."""
    before = len(checkpoints(ours))
    wait_for(lambda: len(checkpoints(ours)) > before, "another checkpoint")
    killed = time.time()
    kill()
    wait_for(lambda: any(e["event"] == "first_step" and e["time"] > killed for e in read_events(ours)), "a step")
    return split_into_phases(killed, read_events(ours))


def checkpoints(ours: Cluster) -> list[dict[str, Any]]:
    """Return the events of published checkpoints."""
    return [event for event in read_events(ours) if event["event"] == "save_published"]


def read_events(ours: Cluster) -> list[dict[str, Any]]:
    """Return the events of the run, sorted by time."""
    lines = run_script(ours, "login", f"cat {RUN}/events.jsonl 2>/dev/null || true").splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda event: event["time"])


def run_script(ours: Cluster, node: str, script: str, user: str = "muster") -> str:
    """Run a script on a node and return its output; exit if it fails."""
    line = ["ssh", "-F", str(ours.home / ours.name / "ssh_config"), "-l", user, node, "bash", "-s"]
    done = subprocess.run(line, input=script, text=True, capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise SystemExit(f"on {node}: {script}\n{done.stderr}")
    return done.stdout.strip()


def wait_for(happened: Callable[[], bool], event: str) -> None:
    """Wait for an event, or exit after the timeout."""
    deadline = time.monotonic() + TIMEOUT_S
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"{event} did not happen within {TIMEOUT_S:.0f} s")
        time.sleep(0.5)


def phase_figures(name: str, recovery: Recovery, bound: float) -> list[Figure]:
    """Return a figure for each phase and the bounded total."""
    phases = [
        Figure(f"{name}: {phase}", seconds, reference=f"total {recovery.total:.1f} s")
        for phase, seconds in recovery.phases.items()
    ]
    return [*phases, Figure(f"{name} to next completed step", recovery.total, at_most=bound)]


if __name__ == "__main__":
    sys.exit(main())
