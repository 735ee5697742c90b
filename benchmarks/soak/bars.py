"""The bars of a soak: what was measured, as figures with bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.figures import Figure
from benchmarks.soak.ledger import Hit, Task, Verdict
from benchmarks.soak.steps import Training, predict_goodput, predict_time_share

POINTS_BELOW_MODEL = 5.0


@dataclass(frozen=True)
class Leftovers:
    """What must not be there after the last job has ended, each with its node."""

    core_dumps: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)
    out_of_service: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoints:
    """The published checkpoints of the training job, and what is wrong with them."""

    checked: int
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """Everything that a soak measured."""

    hits: Sequence[Hit]
    missed: int
    """Kills for which there was nothing to kill, for example a rank while the ranks were starting."""
    verdicts: Mapping[Task, Verdict]
    refused: int
    unknown: Sequence[Task]
    training: Training
    interval_steps: int
    slurmd_timeout_s: float
    training_end: str
    checkpoints: Checkpoints
    leftovers: Leftovers


def judge(measured: Measured) -> list[Figure]:
    """Return the figures of a soak; those with a bound are its bars."""
    return [*_judge_jobs(measured), *_judge_training(measured), *_judge_leftovers(measured.leftovers)]


def _judge_jobs(measured: Measured) -> list[Figure]:
    counted = Counter(measured.verdicts.values())
    parts = Counter(hit.part for hit in measured.hits)
    listed = ", ".join(f"{count} {part}" for part, count in sorted(parts.items()))
    return [
        Figure("kills", len(measured.hits), "", f"{listed}; {measured.missed} hit nothing"),
        Figure("tasks of short jobs, done once", counted["done"], "", f"{measured.refused} submissions refused"),
        Figure("tasks lost", counted["lost"], "", _name(measured, "lost"), 0),
        Figure("tasks run twice", counted["run twice"], "", _name(measured, "run twice"), 0),
        Figure("tasks of nobody", len(measured.unknown), "", _join([name for name, _ in measured.unknown]), 0),
        Figure("tasks that slurmctld forgot within 10 s", counted["forgotten"], "", _name(measured, "forgotten")),
        Figure("tasks repeated after a lost end", counted["repeated"], "", _name(measured, "repeated")),
    ]


def _judge_training(measured: Measured) -> list[Figure]:
    training, interval = measured.training, measured.interval_steps
    goodput, expected = 100 * training.goodput, 100 * predict_goodput(training, interval)
    share = 100 * predict_time_share(training, interval, measured.slurmd_timeout_s)
    counts = f"{training.useful} useful, {training.lost} lost, {training.interruptions} interruptions"
    return [
        Figure("training: steps that count", goodput, "%", counts),
        Figure("training: below the failure model", max(0.0, expected - goodput), "points",
               f"model {expected:.1f} %", POINTS_BELOW_MODEL),
        Figure("training: time that counts", 100 * training.time_share, "%", f"model {share:.1f} %"),
        Figure("training: steps missing or recorded twice", int(not training.is_whole), "",
               f"{training.attempts} starts of the ranks", 0),
        Figure("training: not stopped as requested", int(measured.training_end != "stopped"), "",
               measured.training_end or "no outcome", 0),
        Figure("checkpoints that cannot be read", len(measured.checkpoints.problems), "",
               _join(measured.checkpoints.problems) or f"{measured.checkpoints.checked} checked", 0),
        Figure("checkpoints missing", int(not measured.checkpoints.checked), "", "", 0),
    ]  # fmt: skip


def _judge_leftovers(leftovers: Leftovers) -> list[Figure]:
    return [
        Figure("core dumps and crashes", len(leftovers.core_dumps), "", _join(leftovers.core_dumps), 0),
        Figure("processes left", len(leftovers.processes), "", _join(leftovers.processes), 0),
        Figure("jobs that do not end", len(leftovers.queued), "", _join(leftovers.queued), 0),
        Figure("nodes out of service", len(leftovers.out_of_service), "", _join(leftovers.out_of_service), 0),
    ]


def _name(measured: Measured, verdict: Verdict) -> str:
    return _join([f"{name}.{task}" for (name, task), given in measured.verdicts.items() if given == verdict])


def _join(names: Sequence[str]) -> str:
    """Return the first names; the file with the results has all of them."""
    shown = 3
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
