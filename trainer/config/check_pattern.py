"""Rules about `communication.pattern`: which runs average whole gradients in buckets that our all-reduce can take."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.errors import ConfigProblem
from trainer.config.schema import Config


def check_pattern(config: Config) -> Iterator[ConfigProblem]:
    """Check that the gradients of a run can be averaged with the pattern."""
    pattern, parallel = config.communication.pattern, config.parallel
    where = "communication.pattern"
    if pattern == "backend":
        return
    if parallel.strategy != "ddp":
        message = f"{pattern}, but the strategy is {parallel.strategy}; only ddp can use it"
        yield ConfigProblem(where, message, "set parallel.strategy to ddp, or this to backend")
    for axis in ("tensor", "expert", "pipeline"):
        if (ranks := getattr(parallel, axis)) > 1:
            message = f"{pattern}, but parallel.{axis}={ranks} averages gradients in another way"
            yield ConfigProblem(where, message, f"set parallel.{axis} to 1, or this to backend")
    if (method := config.communication.compression) != "none":
        message = f"{pattern}, but communication.compression={method} sends gradients in its own way"
        yield ConfigProblem(where, message, "set communication.compression to none, or this to backend")
    if parallel.reduce != "fp32":
        message = f"{pattern}, but parallel.reduce={parallel.reduce} uses the backend's sums"
        yield ConfigProblem(where, message, "set parallel.reduce to fp32, or this to backend")
    if (stored := config.optimizer.gradients) != "fp32":
        message = f"{pattern}, but optimizer.gradients={stored} is averaged with the backend's fp32 sums"
        yield ConfigProblem(where, message, "set optimizer.gradients to fp32, or this to backend")
