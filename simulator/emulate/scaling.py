"""Predict the same job on other numbers of ranks: throughput, efficiency and bottleneck."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.emulate.clock import Clock, PredictedCosts
from simulator.job import Job
from simulator.machines.sources import MachineSource

RANKS = (1, 4, 16, 64, 256)
# Labels of the parts of a prediction whose names are not clear by themselves.
PART_LABELS = {
    "compute": "matrix products",
    "data": "gradients on the network",
    "host": "the host's launches",
    "jitter": "the wait for the slowest rank",
    "memory bound": "memory bandwidth",
    "step": "the fixed cost of a step",
}


@dataclass(frozen=True)
class Row:
    """The job on one number of ranks."""

    ranks: int
    step_s: float
    units_per_s: float
    efficiency: float
    """Throughput relative to the same number of single ranks, each with the work it has in this job."""
    shared_efficiency: float | None
    """The same with a constant global batch that is split further; None if the ranks do not divide it."""
    communication: float
    """Share of the step that is exposed communication."""
    exposed_s: float
    hidden_s: float
    wait_s: float
    parts: dict[str, float]
    bottleneck: str


def predict_scaling(job: Job, machines: MachineSource, buckets: list[int], own: int) -> list[Row]:
    """Return a row for each of `RANKS` and this job's own number, without those that do not fill whole machines."""
    numbers = sorted({ranks for ranks in (*RANKS, own) if not machines.problems(ranks)})
    alone = _step_s(job, machines, 1, buckets)
    return [_row(job, machines, ranks, buckets, alone, batch=own * job.share) for ranks in numbers]


def _row(job: Job, machines: MachineSource, ranks: int, buckets: list[int], alone_s: float, *, batch: int) -> Row:  # noqa: PLR0913
    costs = PredictedCosts(job, machines)
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
        bottleneck=_describe_bottleneck(parts, tick.step_s),
    )


def _shared(job: Job, machines: MachineSource, ranks: int, buckets: list[int], batch: int) -> float | None:
    alone, split = job.shared_by(1, batch), job.shared_by(ranks, batch)
    if alone is None or split is None:
        return None
    return _step_s(alone, machines, 1, buckets) / (ranks * _step_s(split, machines, ranks, buckets))


def _step_s(job: Job, machines: MachineSource, ranks: int, buckets: list[int]) -> float:
    return Clock(PredictedCosts(job, machines), ranks).step(buckets).step_s


def _describe_bottleneck(parts: dict[str, float], step_s: float) -> str:
    largest = max(parts, key=parts.__getitem__)
    return f"{PART_LABELS.get(largest, largest)} {parts[largest] / step_s:.0%}"
