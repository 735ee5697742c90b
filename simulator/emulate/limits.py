"""Settings that cannot be emulated, found before anything runs. Needs no torch."""

from __future__ import annotations

from trainer.config.errors import ConfigProblem
from trainer.config.models import MoeConfig
from trainer.config.schema import Config

MIN_RANKS, MAX_RANKS = 2, 1024


def list_problems(config: Config, ranks: int) -> list[ConfigProblem]:
    """Return what cannot be emulated; `parallel.strategy: auto` passes and is checked again once it is resolved."""
    parallel = config.parallel
    problems = []
    if not MIN_RANKS <= ranks <= MAX_RANKS:
        problems.append(ConfigProblem("--ranks", f"{ranks}; allowed: {MIN_RANKS} to {MAX_RANKS}", "use 4, 16 or 256"))
    if parallel.strategy not in ("auto", "ddp"):
        message = f"{parallel.strategy} is not emulated; allowed: ddp, or auto if it resolves to ddp"
        problems.append(ConfigProblem("parallel.strategy", message, "set parallel.strategy=ddp"))
    for axis in ("tensor", "context", "expert", "pipeline"):
        size = getattr(parallel, axis)
        if size > 1:
            problems.append(
                ConfigProblem(f"parallel.{axis}", f"{size} is not emulated; allowed: 1", f"set parallel.{axis}=1")
            )
    if parallel.accumulate == "sync":
        message = "sync is not emulated: ranks take turns with all their micro-batches; allowed: auto, defer"
        problems.append(ConfigProblem("parallel.accumulate", message, "set parallel.accumulate=defer"))
    if isinstance(config.model, MoeConfig) and config.model.balance == "bias":
        message = "bias is not emulated: it follows the loads on all ranks; allowed: loss, none"
        problems.append(ConfigProblem("model.balance", message, "set model.balance=loss"))
    optimizer, communication = config.optimizer, config.communication
    required_values = {
        "parallel.reduce": (parallel.reduce, "fp32"),
        "optimizer.weights": (optimizer.weights, "fp32"),
        "optimizer.gradients": (optimizer.gradients, "fp32"),
        "communication.compression": (communication.compression, "none"),
        "communication.pattern": (communication.pattern, "backend"),
        "communication.inner_steps": (communication.inner_steps, 0),
    }
    for where, (value, allowed) in required_values.items():
        if value != allowed:
            message = f"{value} is not emulated; allowed: {allowed}"
            problems.append(ConfigProblem(where, message, f"set {where}={allowed}"))
    if config.checkpoint.initial:
        message = (
            f"{config.checkpoint.initial} is not loaded: an emulated run starts from random weights; allowed: empty"
        )
        problems.append(ConfigProblem("checkpoint.initial", message, "leave it out"))
    if config.health.spike in ("rollback", "stop"):
        message = f"{config.health.spike} is not emulated: every step is taken; allowed: ignore, warn"
        problems.append(ConfigProblem("health.spike", message, "set health.spike=warn"))
    if config.health.replay_every:
        message = f"{config.health.replay_every} is not emulated: ranks share one process; allowed: 0"
        problems.append(ConfigProblem("health.replay_every", message, "set health.replay_every=0"))
    if config.run.device == "cuda":
        message = "cuda is not emulated: results are bit-identical to a run on CPUs with gloo; allowed: auto, cpu"
        problems.append(ConfigProblem("run.device", message, "set run.device=cpu"))
    return problems
