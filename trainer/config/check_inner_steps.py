"""Rules about `communication.inner_steps`: which runs have copies of the model that can train apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.config.communication import CommunicationConfig
from trainer.config.errors import ConfigProblem, list_nearest_multiples
from trainer.config.schema import Config

_WHERE = "communication.inner_steps"


def check_inner_steps(config: Config) -> Iterator[ConfigProblem]:
    """Check that copies of the model can take steps of their own, if they are to, and meet where they have to."""
    inner, parallel, evaluation = config.communication.inner_steps, config.parallel, config.evaluation
    if not inner:
        yield from _check_effect(config.communication)
        return
    if parallel.strategy not in ("ddp", "hsdp"):
        reason = {
            "auto": "which may choose one without copies of the model",
            "single": "which has a single copy of the model",
            "fsdp": "whose ranks share a single copy of the model",
        }[parallel.strategy]
        message = f"{inner}, but the strategy is {parallel.strategy}, {reason}"
        yield ConfigProblem(_WHERE, message, "set parallel.strategy to ddp or hsdp, or this to 0")
    for where, value, allowed, reason in _list_conflicts(config):
        if value != allowed:
            message = f"{inner}, but {where}={_format(value)} {reason}"
            yield ConfigProblem(_WHERE, message, f"set {where} to {_format(allowed)}, or this to 0")
    if config.optimizer.name == "muon":
        message = f"{inner}, but optimizer.name=muon divides its work between copies with the same gradients"
        yield ConfigProblem(_WHERE, message, "set optimizer.name to adamw or sgd, or this to 0")
    if inner > config.steps:
        message = f"{inner}, but the run has {config.steps} steps, so the copies would meet only at its end"
        yield ConfigProblem(_WHERE, message, f"use at most {config.steps}")
    if (evaluation.share or evaluation.path) and evaluation.every % inner:
        message = f"{evaluation.every} is not a multiple of {_WHERE} {inner}, and in between, the copies differ"
        yield ConfigProblem("evaluation.every", message, f"use {list_nearest_multiples(evaluation.every, inner)}")


def _list_conflicts(config: Config) -> Iterator[tuple[str, Any, Any, str]]:
    """Yield settings with their value, the only value that works, and what is wrong with others."""
    parallel, communication = config.parallel, config.communication
    for axis in ("tensor", "context", "expert", "pipeline"):
        yield f"parallel.{axis}", getattr(parallel, axis), 1, "needs its ranks in every step"
    yield "communication.compression", communication.compression, "none", "compresses gradients, which are not sent"
    yield "communication.pattern", communication.pattern, "backend", "averages gradients, which are not sent"
    yield "optimizer.weights", config.optimizer.weights, "fp32", "would round what the copies have learned"
    yield "parallel.offload", parallel.offload, False, "has no weights on the device to average"
    if config.fp8.scaling == "delayed":
        yield "fp8.scaling", "delayed", "tensor", "has one history of scales for all copies"
    yield "health.replay_every", config.health.replay_every, 0, "compares copies, which differ"
    if parallel.strategy == "ddp" and parallel.engine == "torch":
        for name in ("static_graph", "find_unused_parameters"):
            yield f"parallel.{name}", getattr(parallel, name), False, "has no effect on gradients that are not sent"


def _check_effect(settings: CommunicationConfig) -> Iterator[ConfigProblem]:
    defaults = CommunicationConfig()
    for name in ("outer_lr", "outer_momentum"):
        value = getattr(settings, name)
        if value != getattr(defaults, name):
            message = f"{value:g} has no effect, because {_WHERE} is 0"
            yield ConfigProblem(f"communication.{name}", message, f"leave it out, or set {_WHERE}, such as to 50")


def _format(value: Any) -> str:
    return str(value).lower()
