"""How often jobs are interrupted and how long they then stand still: published rates and our own measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data"
HOUR = 3600.0
HOURS_PER_MONTH = 730.0
# Between these quantiles of a normal distribution lie 80 %.
TENTH = 1.2816


@dataclass(frozen=True)
class Seen:
    """A published count of failures."""

    name: str
    gpus: float
    days: float
    failures: float
    source: str

    @property
    def gpu_hours(self) -> float:
        """For one failure."""
        return self.gpus * self.days * 24 / self.failures


@dataclass(frozen=True)
class Rate:
    """GPU-hours for one failure: what is expected, and between which values 80 % of clusters are."""

    gpu_hours: float
    low: float
    high: float

    def mean_s(self, gpus: int) -> float:
        """Seconds between two failures of a job on so many GPUs."""
        return self.gpu_hours / gpus * HOUR


def seen() -> tuple[Seen, ...]:
    return tuple(Seen(**entry) for entry in _read("failures.yaml")["failures"])


@cache
def rate() -> Rate:
    """Each cluster counts once, however large: what is unknown is which kind of cluster one's own will be."""
    logs = [math.log(one.gpu_hours) for one in seen()]
    middle, spread = fmean(logs), TENTH * stdev(logs)
    return Rate(math.exp(middle), math.exp(middle - spread), math.exp(middle + spread))


def spot_mean_s(gpu: str, nodes: int) -> float:
    """Seconds between two interruptions of a job on so many spot instances."""
    monthly = _read("failures.yaml")["spot"]["monthly"]
    share = monthly.get(gpu, monthly["h100"])
    return HOURS_PER_MONTH * HOUR / -math.log1p(-share) / nodes


def spot_notice_s() -> float:
    return float(_read("failures.yaml")["spot"]["notice_s"])


def replacement_s(purchase: str) -> float:
    """Until there is another machine; the purchases are those of a stack file."""
    return float(_read("failures.yaml")["replacement_s"][purchase])


def restart_s(slurmd_timeout_s: float) -> float:
    """From the loss of a node to the next step, through the queue, without waiting for a machine and loading."""
    measured = _read("recovery.yaml")["recovery"]
    phases: dict[str, float] = measured["node_killed"]
    fixed = sum(seconds for phase, seconds in phases.items() if phase != "load")
    return fixed + slurmd_timeout_s - float(measured["slurmd_timeout_s"])


def blocked_s(gb: float, copy_s: float, step_s: float) -> float:
    """Training time that one asynchronous save of so many GB per rank takes.

    The copy to the host runs beside the next step and slows it; what is not done by its end is waited for.
    """
    measured = _read("recovery.yaml")["checkpoint"]
    beside = measured["slower_beside_copy"] * min(copy_s, step_s)
    return float(measured["blocked_s_per_gb"] * gb + beside + max(0.0, copy_s - step_s))


@cache
def _read(name: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DATA / name).read_text())
    return read
