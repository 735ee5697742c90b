"""How long training stands still when a rank dies and when a node dies, phase by phase, on a real local cluster.

    python benchmarks/recovery.py [--json FILE]

Three nodes, a job on two of them. First one rank is killed (the ranks start again inside the job), then a whole node
(the job goes back to the queue and starts on the node to spare). The clock runs from the kill to the end of the first
step after it.
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

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from benchmarks.bringup import Cluster, cluster, say  # noqa: E402
from benchmarks.figures import Figure, report  # noqa: E402
from slurm.control import jobs  # noqa: E402

SETTINGS = "tiny-llama parallel.strategy=fsdp batch.micro=2 steps=100000 checkpoint.every=10 metrics.every=10"
JOB = "/shared/muster/slurm/jobs/train.sbatch"
RUN = "/shared/home/muster/runs/recovery"
IN_JOB, THROUGH_QUEUE = 30.0, 90.0
# (phase, the event it ends with). Ranks that start again in the job meet neither the queue nor a new job: there
# detection ends with the next process.
PHASES = (
    ("detect", "job_step_ended"),
    ("schedule", "job_started"),
    ("launch", "process"),
    ("start", "imported"),
    ("rendezvous", "joined"),
    ("build and load", "loaded"),
    ("first step", "first_step"),
)
LIMIT_S = 180.0


@dataclass(frozen=True)
class Recovery:
    """Seconds by phase."""

    phases: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.phases.values())


def recovery(killed: float, events: list[dict[str, Any]]) -> Recovery:
    """Each phase ends with its event's first time after the kill; those that did not happen took no time."""
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with cluster("bench-recovery", 3) as ours:
        say("up ...")
        ours.muster("up")
        node = start_job(ours)
        say("a rank dies ...")
        rank = lose(ours, lambda: on(ours, node, "pkill -9 -n -f 'python.* -m trainer '", "root"))
        say(f"  {rank.total:.1f} s; a node dies ...")
        machine = lose(ours, lambda: subprocess.run(["docker", "kill", f"muster-{ours.name}-{node}"], check=True))
        say(f"  {machine.total:.1f} s")
        ours.muster("teardown", "--yes", "--force")
    figures = [*figures_of("rank killed", rank, IN_JOB), *figures_of("node killed", machine, THROUGH_QUEUE)]
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures]))
    return int(any(figure.verdict == "FAIL" for figure in figures))


def start_job(ours: Cluster) -> str:
    """The job's second node: the first one holds the rendezvous and the batch script."""
    number = on(ours, "login", f"cd ~ && RUN_FOLDER={RUN} sbatch --parsable -N 2 {JOB} {SETTINGS}")
    wait_for(lambda: bool(checkpoints(ours)), "the first checkpoint")
    nodes = on(ours, "login", jobs.list_hostnames(number))
    return nodes.split()[1]


def lose(ours: Cluster, kill: Callable[[], object]) -> Recovery:
    """Breaks something; waits until a step is done that was not done before."""
    before = len(checkpoints(ours))
    wait_for(lambda: len(checkpoints(ours)) > before, "another checkpoint")
    killed = time.time()
    kill()
    wait_for(lambda: any(e["event"] == "first_step" and e["time"] > killed for e in events(ours)), "a step")
    return recovery(killed, events(ours))


def checkpoints(ours: Cluster) -> list[dict[str, Any]]:
    return [event for event in events(ours) if event["event"] == "save_published"]


def events(ours: Cluster) -> list[dict[str, Any]]:
    lines = on(ours, "login", f"cat {RUN}/events.jsonl 2>/dev/null || true").splitlines()
    return sorted((json.loads(line) for line in lines), key=lambda event: event["time"])


def on(ours: Cluster, node: str, script: str, user: str = "muster") -> str:
    line = ["ssh", "-F", str(ours.home / ours.name / "ssh_config"), "-l", user, node, "bash", "-s"]
    done = subprocess.run(line, input=script, text=True, capture_output=True, check=False, timeout=60)
    if done.returncode != 0:
        raise SystemExit(f"on {node}: {script}\n{done.stderr}")
    return done.stdout.strip()


def wait_for(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not met():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(0.5)


def figures_of(name: str, recovery: Recovery, bound: float) -> list[Figure]:
    phases = [
        Figure(f"{name}: {phase}", seconds, reference=f"all {recovery.total:.1f} s")
        for phase, seconds in recovery.phases.items()
    ]
    return [*phases, Figure(f"{name} to next completed step", recovery.total, at_most=bound)]


if __name__ == "__main__":
    sys.exit(main())
