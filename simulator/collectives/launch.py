"""What it costs that a benchmark's one process launches on all GPUs of a node, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

EACH_US = 3.0
"""Of each GPU, before the kernels of all of them begin together."""
EACH_APART_US = 5.6
"""Of each GPU where none waits for the others: the host is done with the next round while they work on this one."""
TOGETHER = ("volta", "turing", "ampere", "ada")


@dataclass(frozen=True)
class Launch:
    before_us: float = 0.0
    least_us: float = 0.0
    """The host's own time of one round: the GPUs cannot be quicker."""

    def time_us(self, collective_us: float) -> float:
        return max(self.least_us, self.before_us + collective_us)


APART = Launch()
"""One process for each GPU."""


def one_process(gpus: int, generation: str) -> Launch:
    if generation in TOGETHER:
        return Launch(before_us=EACH_US * gpus)
    return Launch(least_us=EACH_APART_US * gpus)
