"""Prediction intervals: each component of a step has its own uncertainty, and they add up as variances.

The figures are set so that four of five runs from sources that took no part in the fit lie inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, sqrt

from simulator.hardware.system import System

BASE_UNCERTAINTY = 0.042
"""Standard deviation that no component explains: software releases, ways of measuring."""
COMPONENT_UNCERTAINTY = {
    "compute": 0.055,
    "attention": 0.2,
    "vocabulary": 0.12,
    "memory bound": 0.24,
    "recompute": 0.1,
    "host": 0.4,
    "tensor": 0.32,
    "context": 0.4,
    "experts": 0.48,
    "gather": 0.48,
    "pipeline bubble": 0.28,
    "data": 0.4,
    "optimizer": 0.32,
    "offload": 0.5,
    "step": 0.55,
    "jitter": 0.8,
}
"""Standard deviation of each component of a step, relative to its time."""
INFERRED_UNCERTAINTY = {"recompute": 0.2, "micro_batch": 0.15, "model": 0.1, "global_batch": 0.1, "inter_gb_s": 0.05}
"""Standard deviation added by each property that a row leaves out."""
NETWORK_UNCERTAINTY = 0.05
"""Added for runs on several nodes: other jobs share the network."""
OLD_GPU_UNCERTAINTY = 0.2
"""Added for old GPUs: few published runs, with older software, that vary by half from day to day."""
OLD_GENERATIONS = ("volta", "turing")
INTERVAL_SIGMAS = 1.28
"""Standard deviations of an interval that holds 80 %."""
SLOWER_SKEW = 1.15
"""Stretches the upper side: runs are slower than predicted more often than faster."""


def interval_factors(
    parts: Mapping[str, float], step: float, system: System, gpus: int, inferred: Sequence[str] = ()
) -> tuple[float, float]:
    """Return the ends of the interval, relative to the prediction.

    `gpus` is the number of GPUs of the run, `inferred` lists what was not given as property=value.
    """
    variance = BASE_UNCERTAINTY**2
    for name, seconds in parts.items():
        share = COMPONENT_UNCERTAINTY[name] * seconds / step
        variance += share * share
    if gpus > system.gpus_per_node:
        variance += NETWORK_UNCERTAINTY**2
    if system.gpu.generation in OLD_GENERATIONS:
        variance += OLD_GPU_UNCERTAINTY**2
    for assumption in inferred:
        variance += INFERRED_UNCERTAINTY.get(assumption.partition("=")[0], 0.0) ** 2
    half_width = INTERVAL_SIGMAS * sqrt(variance)
    return exp(-half_width), exp(SLOWER_SKEW * half_width)
