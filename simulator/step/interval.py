"""How far the true time may be from a prediction: each part of a step is known as well as it is, and no better.

The figures are set so that runs of sources that took no part in the fit lie inside in four of five cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, sqrt

from simulator.hardware.system import System

UNKNOWN = 0.042
"""What no part explains: a release, a way of measuring."""
DOUBT = {
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
"""Standard deviation of a part of the step over itself."""
INFERRED = {"recompute": 0.2, "micro_batch": 0.15, "model": 0.1, "global_batch": 0.1, "inter_gb_s": 0.05}
"""What it costs that a row does not say something."""
ACROSS = 0.05
"""A network that others use too."""
OLD = 0.2
"""Of GPUs whose software was another one: few runs on them, and those vary by half from day to day."""
OLD_KINDS = ("volta", "turing")
FOUR_OF_FIVE = 1.28
"""Standard deviations that hold four of five."""
SLOWER = 1.15
"""Something goes wrong more often than it goes well."""


def interval_factors(
    parts: Mapping[str, float], step: float, system: System, gpus: int, inferred: Sequence[str] = ()
) -> tuple[float, float]:
    """The ends of the interval over the prediction; `gpus` of the run, `inferred` as property=value."""
    doubt = UNKNOWN**2
    for name, seconds in parts.items():
        share = DOUBT[name] * seconds / step
        doubt += share * share
    if gpus > system.gpus_per_node:
        doubt += ACROSS**2
    if system.gpu.generation in OLD_KINDS:
        doubt += OLD**2
    for word in inferred:
        doubt += INFERRED.get(word.partition("=")[0], 0.0) ** 2
    reach = FOUR_OF_FIVE * sqrt(doubt)
    return exp(-reach), exp(SLOWER * reach)
