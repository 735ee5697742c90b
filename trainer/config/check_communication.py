"""Rules about communication: which strategies can compress gradients, and which settings a method uses."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.config.communication import CommunicationConfig
from trainer.config.errors import ConfigProblem
from trainer.config.residual import METHODS_WITH_RESIDUAL
from trainer.config.schema import Config

_OWNERS = {"ratio": ("topk", "randomk"), "smoothing": ("topk",), "rank": ("powersgd",)}


def check_compression(config: Config) -> Iterator[ConfigProblem]:
    """Check that gradients can be compressed, and that its settings have an effect."""
    settings, parallel = config.communication, config.parallel
    method = settings.compression
    yield from _check_effect(settings)
    if method == "none":
        return
    where = "communication.compression"
    if parallel.strategy not in ("ddp", "hsdp"):
        reason = {
            "auto": "which may choose one that averages no whole gradients",
            "single": "which averages no gradients",
            "fsdp": "whose ranks hold no copies of the model between which gradients could be compressed",
        }[parallel.strategy]
        message = f"{method}, but the strategy is {parallel.strategy}, {reason}"
        yield ConfigProblem(where, message, "set parallel.strategy to ddp or hsdp, or this to none")
    if parallel.strategy == "hsdp" and method == "powersgd":
        message = "powersgd, but ranks of hsdp hold parts of matrices"
        yield ConfigProblem(where, message, "use topk, randomk, bf16, fp8 or int8, or set parallel.strategy to ddp")
    for axis in ("tensor", "expert", "pipeline"):
        if (ranks := getattr(parallel, axis)) > 1:
            message = f"{method}, but parallel.{axis}={ranks} averages gradients in another way"
            yield ConfigProblem(where, message, f"set parallel.{axis} to 1, or this to none")
    if parallel.reduce != "fp32":
        message = f"{method}, but parallel.reduce={parallel.reduce} rounds the same gradients"
        yield ConfigProblem(where, message, "set parallel.reduce to fp32, or this to none")
    if config.precision == "fp16" and method in METHODS_WITH_RESIDUAL:
        message = f"{method}, but precision=fp16 changes the loss scale, which the residual does not follow"
        yield ConfigProblem(where, message, "set precision to bf16 or fp32, or use bf16, fp8 or int8 here")
    if parallel.accumulate == "sync":
        message = f"{method}, but parallel.accumulate=sync would compress every micro-batch"
        yield ConfigProblem(where, message, "set parallel.accumulate to auto, or this to none")
    if settings.warmup_steps >= config.steps:
        message = f"{settings.warmup_steps}, but the run has {config.steps} steps, so none would be compressed"
        yield ConfigProblem("communication.warmup_steps", message, f"use less than {config.steps}")


def _check_effect(settings: CommunicationConfig) -> Iterator[ConfigProblem]:
    defaults, method = CommunicationConfig(), settings.compression
    for name, owners in _OWNERS.items():
        value = getattr(settings, name)
        if value != getattr(defaults, name) and method not in owners:
            message = f"{value:g} has no effect, because communication.compression is {method}"
            fix = f"leave it out, or set communication.compression to {' or '.join(owners)}"
            yield ConfigProblem(f"communication.{name}", message, fix)
    if settings.warmup_steps and method == "none":
        message = f"{settings.warmup_steps} has no effect, because communication.compression is none"
        yield ConfigProblem("communication.warmup_steps", message, "leave it out, or choose a compression")
