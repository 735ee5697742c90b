"""What the clock is advanced by: seconds of one rank's work, and of one all-reduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.collectives import Group, time_s
from simulator.job import Job
from simulator.machines.clocked import Clocked
from simulator.step.prediction import Prediction, predict

_BACKWARD = 2 / 3
"""Of forward and backward: the gradients of inputs and of weights take as long as forward, each."""


@dataclass(frozen=True)
class Work:
    """Of one rank in one step; nothing of it waits for others."""

    before_s: float
    """Until the first gradient that is sent."""
    window_s: float
    """From then to the end of backward: gradients travel beside it."""
    after_s: float
    """The update."""
    wait_s: float
    """For the slowest rank, as to be expected where no differences are drawn."""
    slowed: float = 0.0
    """Seconds that a second of traffic costs the work beside it."""


class Costs(Protocol):
    def work(self, ranks: int) -> Work: ...

    def all_reduce_s(self, size: float, ranks: int) -> float:
        """Of `size` bytes over all ranks."""


class Modelled:
    """A job on machines as the simulator predicts it."""

    def __init__(self, job: Job, machines: Clocked) -> None:
        self._job = job
        self._machines = machines

    def prediction(self, ranks: int) -> Prediction:
        on = self._machines
        return predict(self._job.model, self._job.layout(ranks), on.system(ranks), on.rates(ranks))

    def work(self, ranks: int) -> Work:
        parts = self.prediction(ranks).parts
        wait, after = parts.get("jitter", 0.0), parts.get("optimizer", 0.0)
        own = sum(parts.values()) - parts.get("data", 0.0) - wait - after
        passes = own - parts.get("step", 0.0)
        window = _BACKWARD * passes / max(1, self._job.layout(ranks).micro_batches)
        return Work(own - window, window, after, wait, self._machines.rates(ranks).slowed)

    def all_reduce_s(self, size: float, ranks: int) -> float:
        if ranks == 1:
            return 0.0
        group = Group(ranks, self._machines.per_node(ranks))
        return self._machines.rates(ranks).links * time_s("all_reduce", size, group, self._machines.system(ranks))
