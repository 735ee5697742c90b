"""What cannot be emulated, in words, before anything is run."""

from __future__ import annotations

from trainer.config.errors import ConfigProblem
from trainer.config.schema import Config

LEAST_RANKS, MOST_RANKS = 2, 1024


def problems(config: Config, ranks: int) -> list[ConfigProblem]:
    """`auto` passes here: what it becomes is known later, and asked again."""
    parallel = config.parallel
    found = []
    if not LEAST_RANKS <= ranks <= MOST_RANKS:
        found.append(ConfigProblem("--ranks", f"{ranks}; allowed: {LEAST_RANKS} to {MOST_RANKS}", "use 4, 16 or 256"))
    if parallel.strategy not in ("auto", "ddp"):
        message = f"{parallel.strategy} is not emulated; allowed: ddp, or auto where that becomes ddp"
        found.append(ConfigProblem("parallel.strategy", message, "set parallel.strategy=ddp"))
    for axis in ("tensor", "pipeline"):
        size = getattr(parallel, axis)
        if size > 1:
            found.append(
                ConfigProblem(f"parallel.{axis}", f"{size} is not emulated; allowed: 1", f"set parallel.{axis}=1")
            )
    if parallel.accumulate == "sync":
        message = "sync is not emulated: ranks take turns with all their micro-batches; allowed: auto, defer"
        found.append(ConfigProblem("parallel.accumulate", message, "set parallel.accumulate=defer"))
    if config.checkpoint.initial:
        message = f"{config.checkpoint.initial} is not loaded: an emulated run draws its first weights; allowed: empty"
        found.append(ConfigProblem("checkpoint.initial", message, "leave it out"))
    if config.health.spike in ("rollback", "stop"):
        message = f"{config.health.spike} is not emulated: every step is made; allowed: ignore, warn"
        found.append(ConfigProblem("health.spike", message, "set health.spike=warn"))
    if config.run.device == "cuda":
        message = "cuda is not emulated: the bits are those of a run on CPUs with gloo; allowed: auto, cpu"
        found.append(ConfigProblem("run.device", message, "set run.device=cpu"))
    return found
