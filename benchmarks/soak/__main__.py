"""Run mixed jobs on a local cluster, kill its parts at random, and judge what is left.

    python -m benchmarks.soak [--minutes 30] [--mtbf 60] [--seed 1] [--json FILE]

Three nodes: a training job on two of them, with checkpoints, and short jobs and arrays on what is free. Ranks, their
launchers, daemons and whole machines are killed, in an order and at times that follow from the seed. docs/soak.md
describes the bars.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bringup import print_progress
from benchmarks.figures import Figure, report
from benchmarks.soak import cluster as machines
from benchmarks.soak.bars import Measured, judge
from benchmarks.soak.cluster import FOLDER, RUN
from benchmarks.soak.ledger import Accepted, Hit, Task, judge_tasks, list_unknown, parse_ledger, write_job_script
from benchmarks.soak.plan import Kill, Submission, plan_kills, plan_submissions
from benchmarks.soak.steps import read_training
from tests.harness import Stack, small_spec

NODES = 3
# Slurm misses a node of a local cluster after so many seconds.
SLURMD_TIMEOUT_S = 30.0
CHECKPOINT_EVERY = 10
TRAIN = "/shared/muster/slurm/jobs/train.sbatch"
SETTINGS = (
    *(
        "tiny-llama",
        "parallel.strategy=fsdp",
        "batch.micro=2",
        "steps=10000000",
        f"checkpoint.every={CHECKPOINT_EVERY}",
    ),
    *("metrics.every=1", "metrics.profile_every=0", "metrics.tensorboard=false", "metrics.peak_tflops=1"),
)
# Without newer checkpoints the job gives up after 3 requeues, which a short mean time between kills can cause.
VARIABLES = f"RANKS_PER_NODE=1 MAX_STALLED_REQUEUES=50 MAX_REQUEUES=1000 RUN_FOLDER={RUN}"
# Appends `time step` of the last recorded step: a resumed run removes the steps that it computes again.
SAMPLE = f"""cat >{FOLDER}/sample <<'END'
while [ ! -e {FOLDER}/enough ]; do
  step=$(tail -n 1 {RUN}/metrics/rank-00000.jsonl 2>/dev/null | grep -oE '"step": [0-9]+')
  [ -z "$step" ] || echo "$EPOCHREALTIME ${{step##* }}" >>{FOLDER}/samples
  sleep 0.5
done
END
setsid bash {FOLDER}/sample >/dev/null 2>&1 </dev/null &"""
# For all jobs to end on a busy machine.
SETTLE_S = 420.0
# Three rounds of health checks return a node that they have drained; a person would have to return any other.
RETURN_S = 240.0
SUBMIT_TIMEOUT_S = 60


@dataclass
class Log:
    """What was done to the cluster."""

    hits: list[Hit] = field(default_factory=list)
    missed: int = 0
    accepted: list[Accepted] = field(default_factory=list)
    refused: list[Task] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the soak, print the figures and return 1 if one exceeds its bound."""
    options = parse_arguments(argv)
    with local_cluster() as stack:
        print_progress("up ...")
        stack.up()
        measured = soak(stack, options.minutes * 60, options.mtbf, options.seed)
        stack.muster("teardown", "--yes", "--force")
    figures = judge(measured)
    print(report(figures))
    if options.json:
        options.json.write_text(json.dumps(describe(measured, options, figures), indent=2) + "\n")
    return int(any(figure.verdict == "FAIL" for figure in figures))


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=parse_more_than_0, default=30.0, help="how long parts are killed (30)")
    parser.add_argument("--mtbf", type=parse_more_than_0, default=60.0, help="mean seconds between two kills (60)")
    parser.add_argument("--seed", type=int, default=1, help="order and times of kills and jobs (1)")
    parser.add_argument("--json", type=Path, help="write the figures, all kills and all tasks to this file")
    return parser.parse_args(argv)


def parse_more_than_0(text: str) -> float:
    """Return a number above 0, or raise an error for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


@contextmanager
def local_cluster() -> Iterator[Stack]:
    """Yield a cluster, and remove everything with its label afterwards, even if the soak failed."""
    group = {"count": NODES, "gpus": {"count": 1, "kind": "simulated", "type": "h100"}}
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as home:
        stack = Stack("soak", Path(home), small_spec(name=f"soak-{os.getpid():x}", groups={"gpu": group}))
        try:
            yield stack
        finally:
            stack.remove()


def soak(stack: Stack, seconds: float, mtbf_s: float, seed: int) -> Measured:
    """Start the jobs, kill parts of the cluster, wait for the end of all jobs and measure."""
    log, crashes_before = Log(), machines.list_crashes(stack)
    stack.ssh("login", f"mkdir -p {FOLDER}/ledger {RUN}")
    training = stack.ssh("login", f"cd ~ && {VARIABLES} sbatch --parsable -J soak-train {TRAIN} {' '.join(SETTINGS)}")
    if not machines.wait_for(lambda: bool(list_steps(stack)), SETTLE_S):
        raise SystemExit(f"the training job did not begin within {SETTLE_S:.0f} s")
    stack.ssh("login", SAMPLE)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(submit_all, stack, plan_submissions(seed, seconds), began, log)
        kill_all(stack, plan_kills(seed, seconds, mtbf_s), began, training, log)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        print_progress("no more kills: waiting for the jobs to end")
        submitting.result()
    end_training(stack, log)
    machines.wait_for(lambda: machines.list_queue(stack) == [], SETTLE_S)
    machines.wait_for(lambda: machines.list_out_of_service(stack) == [], RETURN_S)
    stack.ssh("login", f"touch {FOLDER}/enough")
    return measure(stack, log, crashes_before)


def kill_all(stack: Stack, kills: Sequence[Kill], began: float, training: str, log: Log) -> None:
    """Kill what is planned, each at its time, or at once if the one before took longer."""
    for planned in kills:
        time.sleep(max(0.0, began + planned.at_s - time.monotonic()))
        hit = machines.kill(stack, planned, training)
        if hit is None:
            log.missed += 1
        else:
            log.hits.append(hit)
        where = f"on {hit.target}{', which trains' if hit.hit_training else ''}" if hit else "nothing to kill"
        print_progress(f"  {time.monotonic() - began:4.0f} s: {planned.part} {where}")


def submit_all(stack: Stack, submissions: Sequence[Submission], began: float, log: Log) -> None:
    """Submit the short jobs, each at its time; a submission without an answer is not repeated."""
    for submission in submissions:
        time.sleep(max(0.0, began + submission.at_s - time.monotonic()))
        tasks: list[Task] = [(submission.name, 0)]
        array = ""
        if submission.tasks > 1:
            tasks = [(submission.name, number) for number in range(1, submission.tasks + 1)]
            array = f"--array=1-{submission.tasks}"
        script = write_job_script(f"{FOLDER}/ledger", submission.sleep_s)
        line = f"timeout {SUBMIT_TIMEOUT_S} sbatch --parsable -J {submission.name} -n 1 --mem=50 -o /dev/null {array}"
        submitted_at = time.time()
        answer = stack.ssh("login", f"cd ~ && {line} 2>/dev/null <<'END' || true\n{script}END")
        if answer.isdigit():
            log.accepted += [Accepted(task, submitted_at, time.time()) for task in tasks]
        else:
            log.refused += tasks


def end_training(stack: Stack, log: Log) -> None:
    """Wait until the training job has passed all kills and saved again, then request its end."""
    last = max((hit.at for hit in log.hits), default=0.0)
    is_over = machines.wait_for(
        lambda: any(
            event["event"] == "save_published" and event["time"] > last
            for event in machines.read_json_lines(stack, "events.jsonl")
        ),
        SETTLE_S,
    )
    if not is_over:
        print_progress(f"  the training job did not save again within {SETTLE_S:.0f} s after the last kill")
    stack.ssh("login", f"echo enough >{RUN}/stop")


def list_steps(stack: Stack) -> list[int]:
    """Return the recorded steps of the training job."""
    return [int(line["step"]) for line in machines.read_json_lines(stack, "metrics/rank-00000.jsonl")]


def measure(stack: Stack, log: Log, crashes_before: set[str]) -> Measured:
    """Read what the jobs left."""
    attempts = parse_ledger(stack.ssh("login", f"cd {FOLDER}/ledger && grep -H '' * 2>/dev/null || true"))
    events = machines.read_json_lines(stack, "events.jsonl")
    samples = [line.split() for line in stack.ssh("login", f"cat {FOLDER}/samples || true").splitlines()]
    ended = [event["outcome"] for event in events if event["event"] == "ended"]
    return Measured(
        hits=log.hits,
        missed=log.missed,
        verdicts=judge_tasks(log.accepted, attempts, machines.read_records(stack), log.hits),
        refused=len(log.refused),
        unknown=list_unknown(log.accepted, attempts, log.refused),
        training=read_training(
            events,
            machines.read_json_lines(stack, "metrics/rank-00000.jsonl"),
            [(float(at), int(step)) for at, step in samples],
        ),
        interval_steps=CHECKPOINT_EVERY,
        slurmd_timeout_s=SLURMD_TIMEOUT_S,
        training_end=ended[-1] if ended else "",
        checkpoints=machines.read_checkpoints(stack),
        leftovers=machines.read_leftovers(stack, crashes_before),
    )


def describe(measured: Measured, options: argparse.Namespace, figures: Sequence[Figure]) -> dict[str, Any]:
    """Return everything that was measured, for a file."""
    return {
        "minutes": options.minutes,
        "mtbf_s": options.mtbf,
        "seed": options.seed,
        "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures],
        "kills": [asdict(hit) for hit in measured.hits],
        "tasks": {f"{name}.{task}": verdict for (name, task), verdict in sorted(measured.verdicts.items())},
        "training": asdict(measured.training),
        "leftovers": asdict(measured.leftovers),
    }


if __name__ == "__main__":
    sys.exit(main())
