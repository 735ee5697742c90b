"""The same job on other numbers of ranks: what more of them bring, what they cost, what holds them up."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.emulate.clock import Clock
from simulator.emulate.costs import Modelled
from simulator.job import Job
from simulator.machines.clocked import Clocked

RANKS = (1, 4, 16, 64, 256)
# Of the parts of a prediction, those whose names do not say it.
MEANS = {
    "compute": "matrix products",
    "data": "gradients on the network",
    "host": "the host's launches",
    "jitter": "the wait for the slowest rank",
    "memory bound": "memory bandwidth",
    "step": "the fixed cost of a step",
}


@dataclass(frozen=True)
class Row:
    ranks: int
    step_s: float
    units_per_s: float
    efficiency: float
    """Throughput over that of as many single ranks, every rank with the work it has in this job."""
    shared_efficiency: float | None
    """The same where the global batch stays as it is and is split further; None where it does not divide."""
    communication: float
    """Share of the step that is communication nothing hides."""
    exposed_s: float
    hidden_s: float
    wait_s: float
    parts: dict[str, float]
    bottleneck: str


def scaling(job: Job, machines: Clocked, buckets: list[int], also: int) -> list[Row]:
    """For `RANKS` and this job's own number; those that do not fill machines of the kind are left out."""
    numbers = sorted({ranks for ranks in (*RANKS, also) if not machines.problems(ranks)})
    alone = _step_s(job, machines, 1, buckets)
    return [_row(job, machines, ranks, buckets, alone, batch=also * job.share) for ranks in numbers]


def _row(job: Job, machines: Clocked, ranks: int, buckets: list[int], alone_s: float, *, batch: int) -> Row:  # noqa: PLR0913
    costs = Modelled(job, machines)
    tick = Clock(costs, ranks).step(buckets)
    parts = {**costs.prediction(ranks).parts, "data": tick.exposed_s}
    return Row(
        ranks=ranks,
        step_s=tick.step_s,
        units_per_s=job.units(ranks) / tick.step_s,
        efficiency=alone_s / tick.step_s,
        shared_efficiency=_shared(job, machines, ranks, buckets, batch),
        communication=tick.exposed_s / tick.step_s,
        exposed_s=tick.exposed_s,
        hidden_s=tick.hidden_s,
        wait_s=tick.wait_s,
        parts=parts,
        bottleneck=_words(parts, tick.step_s),
    )


def _shared(job: Job, machines: Clocked, ranks: int, buckets: list[int], batch: int) -> float | None:
    alone, split = job.shared_by(1, batch), job.shared_by(ranks, batch)
    if alone is None or split is None:
        return None
    return _step_s(alone, machines, 1, buckets) / (ranks * _step_s(split, machines, ranks, buckets))


def _step_s(job: Job, machines: Clocked, ranks: int, buckets: list[int]) -> float:
    return Clock(Modelled(job, machines), ranks).step(buckets).step_s


def _words(parts: dict[str, float], step_s: float) -> str:
    largest = max(parts, key=parts.__getitem__)
    return f"{MEANS.get(largest, largest)} {parts[largest] / step_s:.0%}"
