"""What a soak does and when: the kills and the submissions, which follow from its seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

Part = Literal["rank", "torchrun", "srun", "slurmd", "slurmctld", "node", "controller"]
"""What is killed: a process of the training job, a daemon, or a whole machine, which starts again at once."""
PARTS: tuple[Part, ...] = get_args(Part)
OF_QUEUE: tuple[Part, ...] = ("slurmctld", "controller")
"""Parts whose loss costs what slurmctld has not saved yet."""

# Long enough for several jobs of each kind in a soak of minutes, and short enough for two shared cores.
_GAP_S = 8.0
_SLEEP_S = (1.0, 12.0)
_ARRAY_SHARE = 0.25
_ARRAY_TASKS = 3


@dataclass(frozen=True)
class Kill:
    """A part that is killed at a moment; `choice` (0 to 1) selects one of several of its kind."""

    at_s: float
    part: Part
    choice: float


@dataclass(frozen=True)
class Submission:
    """A short job that is submitted at a moment; each task sleeps so long. An array has more than one task."""

    at_s: float
    name: str
    tasks: int
    sleep_s: float


def plan_kills(seed: int, seconds: float, mtbf_s: float) -> list[Kill]:
    """Return the kills of a soak: random gaps with this mean, and every part once before one is killed again."""
    random = Random(f"kills {seed}")  # noqa: S311  # the same seed must give the same kills; nothing is secret
    kills: list[Kill] = []
    at_s = random.expovariate(1 / mtbf_s)
    for part in _deal(random):
        if at_s >= seconds:
            return kills
        kills.append(Kill(at_s, part, random.random()))
        at_s += random.expovariate(1 / mtbf_s)
    raise AssertionError("parts are dealt forever")


def plan_submissions(seed: int, seconds: float) -> list[Submission]:
    """Return the short jobs of a soak, each with its own name: slurmctld may use the id of a lost job again."""
    random = Random(f"submissions {seed}")  # noqa: S311  # as above
    submissions: list[Submission] = []
    at_s = random.expovariate(1 / _GAP_S)
    while at_s < seconds:
        tasks = _ARRAY_TASKS if random.random() < _ARRAY_SHARE else 1
        submissions.append(Submission(at_s, f"soak-{len(submissions) + 1:04d}", tasks, random.uniform(*_SLEEP_S)))
        at_s += random.expovariate(1 / _GAP_S)
    return submissions


def choose_node(nodes: Sequence[str], choice: float) -> str:
    """Return one of several nodes: the first for a `choice` of 0, the last for one of nearly 1."""
    return nodes[min(int(choice * len(nodes)), len(nodes) - 1)]


def _deal(random: Random) -> Iterator[Part]:
    """Yield the parts in random order, again and again."""
    while True:
        yield from random.sample(PARTS, len(PARTS))
