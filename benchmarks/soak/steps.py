"""The training job of a soak: useful and lost steps, and the share that the simulator's failure model expects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from simulator.whole_run.failures import restart_s
from simulator.whole_run.goodput import Conditions, stretch


@dataclass(frozen=True)
class Training:
    """What the training job did."""

    useful: int
    """Steps of the run, each counted once."""
    lost: int
    """Steps that were computed and lost, because no checkpoint held them when the ranks were killed."""
    attempts: int
    """Starts of the ranks that completed a step."""
    step_s: float
    """Median time of a step."""
    write_s: float
    """Median time until a checkpoint was complete."""
    wall_s: float
    """From the first step to the last one."""
    is_whole: bool
    """Whether every step is recorded exactly once."""

    @property
    def interruptions(self) -> int:
        """How often steps were interrupted; a kill while the ranks start costs time and no step."""
        return max(0, self.attempts - 1)

    @property
    def goodput(self) -> float:
        """Share of the computed steps that were not lost."""
        return self.useful / max(1, self.useful + self.lost)

    @property
    def time_share(self) -> float:
        """Share of the wall time that was spent on useful steps."""
        return min(1.0, self.useful * self.step_s / self.wall_s) if self.wall_s else 0.0


def read_training(
    events: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]], samples: Sequence[tuple[float, int]]
) -> Training:
    """Read the run from its events, its metrics, and samples (time, last recorded step) that were taken meanwhile.

    A resumed run removes the lines of the steps that it computes again, so that only the samples show the lost ones.
    """
    steps = [int(line["step"]) for line in lines]
    starts = [(event["time"], int(event["step"])) for event in events if event["event"] == "first_step"]
    saves = [event["seconds"] for event in events if event["event"] == "save_published" and event.get("seconds")]
    return Training(
        useful=len(set(steps)),
        lost=_count_lost(starts, samples),
        attempts=len(starts),
        step_s=median([line["step_s"] for line in lines if "step_s" in line] or [0.0]),
        write_s=median(saves or [0.0]),
        wall_s=lines[-1]["time"] - starts[0][0] if starts and lines else 0.0,
        is_whole=bool(steps) and steps == list(range(1, len(steps) + 1)),
    )


def predict_goodput(training: Training, interval_steps: int) -> float:
    """Return the share of the steps that the failure model expects to count: only lost steps, without any waiting."""
    return _predict(training, interval_steps, waiting_s=0.0)


def predict_time_share(training: Training, interval_steps: int, slurmd_timeout_s: float) -> float:
    """Return the share of the time that the failure model expects to count, with the restarts that it assumes."""
    return _predict(training, interval_steps, waiting_s=restart_s(slurmd_timeout_s))


def _predict(training: Training, interval_steps: int, waiting_s: float) -> float:
    computing_s = (training.useful + training.lost) * training.step_s
    running_s = training.wall_s if waiting_s else computing_s
    if not training.interruptions or not running_s:
        return 1.0
    conditions = Conditions(failure_s=running_s / training.interruptions, write_s=training.write_s, restart_s=waiting_s)
    factor = stretch(conditions, interval_steps * training.step_s)
    return 0.0 if math.isinf(factor) else 1 / factor


def _count_lost(starts: Sequence[tuple[float, int]], samples: Sequence[tuple[float, int]]) -> int:
    """Return how many steps later attempts computed again; each start has the number of its first step."""
    lost = 0
    for (before, _), (began, first) in pairwise(starts):
        reached = max((step for at, step in samples if before <= at < began), default=0)
        lost += max(0, reached - (first - 1))
    return lost
