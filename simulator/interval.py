"""How far the true time may be from a prediction: each part of a step is known as well as it is, and no better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, sqrt

UNKNOWN = 0.07
"""What no part explains: a cluster's weather, a release, a way of measuring."""
DOUBT = {
    "compute": 0.07,
    "attention": 0.25,
    "vocabulary": 0.15,
    "memory bound": 0.3,
    "recompute": 0.12,
    "host": 0.5,
    "tensor": 0.4,
    "context": 0.5,
    "experts": 0.6,
    "gather": 0.6,
    "pipeline bubble": 0.35,
    "data": 0.5,
    "optimizer": 0.4,
    "offload": 0.6,
    "step": 0.7,
    "jitter": 1.0,
}
"""Standard deviation of a part of the step over itself."""
INFERRED = {"recompute": 0.12, "micro_batch": 0.06, "model": 0.06, "global_batch": 0.05, "inter_gb_s": 0.03}
"""What it costs that a row does not say something."""
FOUR_OF_FIVE = 1.28
"""Standard deviations that hold four of five."""
SLOWER = 1.15
"""Something goes wrong more often than it goes well."""


def spread(parts: Mapping[str, float], step: float, inferred: Sequence[str] = ()) -> tuple[float, float]:
    """The ends of the interval over the prediction; `inferred` as property=value."""
    doubt = UNKNOWN**2
    for name, seconds in parts.items():
        share = DOUBT[name] * seconds / step
        doubt += share * share
    for word in inferred:
        doubt += INFERRED.get(word.partition("=")[0], 0.0) ** 2
    reach = FOUR_OF_FIVE * sqrt(doubt)
    return exp(-reach), exp(SLOWER * reach)
