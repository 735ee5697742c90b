"""What became of the short jobs: the lines that they wrote and Slurm's accounting, against what was submitted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from benchmarks.soak.plan import OF_QUEUE, Part
from slurm.control.accounting import JobRecord

STATE_SAVED_S = 10.0
"""slurmctld saves its state within 5 s; twice that, because the times are those of several busy machines."""
Task = tuple[str, int]
"""Name of a job and number of a task in it; 0 if it is no array."""
Verdict = Literal["done", "forgotten", "repeated", "lost", "run twice"]
_LINE = re.compile(r"^(\S+)\.(\d+):(begin|end) ([\d.]+) (?:([\d.]+)|(\S+))$")


@dataclass(frozen=True)
class Accepted:
    """A task of a job for which sbatch returned an id."""

    task: Task
    submitted_at: float
    answered_at: float


@dataclass(frozen=True)
class Hit:
    """A kill that took place; `target` is the node, or the node on which a process was killed."""

    at: float
    part: Part
    target: str
    hit_training: bool = False


@dataclass(frozen=True)
class Attempt:
    """A start of a task; `ended` is None if it was killed."""

    began: float
    node: str
    ended: float | None


def write_job_script(folder: str, sleep_s: float) -> str:
    """Return a job script that writes when it began, and when it ended, to a file of its own in a shared folder."""
    return f"""#!/bin/bash
file={folder}/$SLURM_JOB_NAME.${{SLURM_ARRAY_TASK_ID:-0}}
began=$EPOCHREALTIME
echo "begin $began $(hostname)" >>"$file"
sleep {sleep_s:.1f}
echo "end $began $EPOCHREALTIME" >>"$file"
"""


def parse_ledger(text: str) -> dict[Task, list[Attempt]]:
    """Parse `file:line` of all files of the job scripts; a line that a kill cut short is skipped."""
    began: dict[tuple[Task, float], str] = {}
    ended: dict[tuple[Task, float], float] = {}
    for match in filter(None, map(_LINE.match, text.splitlines())):
        attempt = ((match[1], int(match[2])), float(match[4]))
        if match[3] == "begin" and match[6]:
            began[attempt] = match[6]
        elif match[3] == "end" and match[5]:
            ended[attempt] = float(match[5])
    attempts: dict[Task, list[Attempt]] = {}
    for (task, at), node in sorted(began.items()):
        attempts.setdefault(task, []).append(Attempt(at, node, ended.get((task, at))))
    return attempts


def judge_tasks(
    accepted: Iterable[Accepted],
    attempts: Mapping[Task, Sequence[Attempt]],
    records: Iterable[JobRecord],
    hits: Sequence[Hit],
) -> dict[Task, Verdict]:
    """Return what became of each accepted task.

    `forgotten` and `repeated` are what Slurm does by design: a slurmctld that dies forgets what it has not saved, so
    that a new job is gone, or a job that has just ended runs again; so does a job whose node dies before it has
    reported the end. Anything else that does not end exactly once is `lost` or `run twice`.
    """
    completed = {(record.name, record.task) for record in records if record.state == "COMPLETED"}
    return {
        entry.task: _judge(entry, attempts.get(entry.task, ()), is_recorded=entry.task in completed, hits=hits)
        for entry in accepted
    }


def list_unknown(accepted: Iterable[Accepted], attempts: Mapping[Task, object], refused: Iterable[Task]) -> list[Task]:
    """Return the tasks that ran although nothing of their name was submitted; a refused submission may have arrived."""
    allowed = {entry.task for entry in accepted} | set(refused)
    return sorted(set(attempts) - allowed)


def _judge(entry: Accepted, attempts: Sequence[Attempt], *, is_recorded: bool, hits: Sequence[Hit]) -> Verdict:
    ended = [attempt for attempt in attempts if attempt.ended is not None]
    if any(later.began < (earlier.ended or earlier.began) for earlier, later in pairwise(attempts)):
        return "run twice"
    if not ended:
        is_excused = not attempts and any(_forgets(hit, entry) for hit in hits)
        return "forgotten" if is_excused else "lost"
    if not all(any(_loses_the_end(hit, attempt) for hit in hits) for attempt in ended[:-1]):
        return "run twice"
    if not is_recorded:
        return "lost"
    return "done" if len(ended) == 1 else "repeated"


def _forgets(hit: Hit, entry: Accepted) -> bool:
    """Return whether slurmctld died before it had saved a task: while it was submitted, or soon after its answer."""
    return hit.part in OF_QUEUE and entry.submitted_at <= hit.at <= entry.answered_at + STATE_SAVED_S


def _loses_the_end(hit: Hit, attempt: Attempt) -> bool:
    """Return whether the end of an attempt was lost: with slurmctld's memory, or with the node before it reported."""
    if attempt.ended is None:
        return False
    died_with_node = hit.part == "node" and hit.target == attempt.node
    return (hit.part in OF_QUEUE or died_with_node) and abs(hit.at - attempt.ended) <= STATE_SAVED_S
