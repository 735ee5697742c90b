"""How often jobs are interrupted and how long recovery takes: published failure rates and our own measurements."""

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
NORMAL_80_PERCENT = 1.2816
"""Standard deviations around the mean of a normal distribution that hold 80 % of it."""


@dataclass(frozen=True)
class FailureCount:
    """A published count of failures of one cluster."""

    name: str
    gpus: float
    days: float
    failures: float
    source: str

    @property
    def gpu_hours(self) -> float:
        """GPU-hours per failure."""
        return self.gpus * self.days * 24 / self.failures


@dataclass(frozen=True)
class Rate:
    """GPU-hours per failure: the expected value, and the interval that holds 80 % of clusters."""

    gpu_hours: float
    low: float
    high: float

    def mean_s(self, gpus: int) -> float:
        """Return the mean seconds between failures of a job on this number of GPUs."""
        return self.gpu_hours / gpus * HOUR


def load_failure_counts() -> tuple[FailureCount, ...]:
    """Return the published failure counts."""
    return tuple(FailureCount(**entry) for entry in _read("failures.yaml")["failures"])


@cache
def rate() -> Rate:
    """Return the failure rate; each cluster counts once, because the unknown is which kind of cluster yours will be."""
    logs = [math.log(count.gpu_hours) for count in load_failure_counts()]
    middle, spread = fmean(logs), NORMAL_80_PERCENT * stdev(logs)
    return Rate(math.exp(middle), math.exp(middle - spread), math.exp(middle + spread))


def spot_mean_s(gpu: str, nodes: int) -> float:
    """Return the mean seconds between interruptions of a job on this number of spot instances."""
    monthly = _read("failures.yaml")["spot"]["monthly"]
    share = monthly.get(gpu, monthly["h100"])
    return HOURS_PER_MONTH * HOUR / -math.log1p(-share) / nodes


def spot_notice_s() -> float:
    """Return how long before an interruption a spot instance is notified."""
    return float(_read("failures.yaml")["spot"]["notice_s"])


def replacement_s(purchase: str) -> float:
    """Return the seconds until a replacement machine is available, by the purchase option of the stack file."""
    return float(_read("failures.yaml")["replacement_s"][purchase])


def restart_s(slurmd_timeout_s: float) -> float:
    """Return the seconds from the loss of a node to the next step, without waiting for a machine or loading."""
    measured = _read("recovery.yaml")["recovery"]
    phases: dict[str, float] = measured["node_killed"]
    fixed = sum(seconds for phase, seconds in phases.items() if phase != "load")
    return fixed + slurmd_timeout_s - float(measured["slurmd_timeout_s"])


def blocked_s(gb: float, copy_s: float, step_s: float) -> float:
    """Return the training time that an asynchronous save of this many GB per rank costs.

    The copy to the host overlaps with the next step and slows it; after the step, training waits for the remainder.
    """
    measured = _read("recovery.yaml")["checkpoint"]
    overlapped = measured["slowdown_during_copy"] * min(copy_s, step_s)
    return float(measured["blocked_s_per_gb"] * gb + overlapped + max(0.0, copy_s - step_s))


@cache
def _read(name: str) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load((DATA / name).read_text())
    return tree
