"""`parallel.strategy: auto`, settled before a job is submitted: the fastest layout on the machines that it will get."""

from __future__ import annotations

from simulator.models import transformer
from simulator.search.best import Found, best
from simulator.search.space import Batch, Fixed, Space
from simulator.search.trainer_config import parallel
from simulator.system import System
from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import Config, Gpt2Config, LlamaConfig


def why_not(config: Config) -> str:
    """Why the choice is left to the trainer, which makes it by the memory that it finds; empty where it is not."""
    if not isinstance(config.model, LlamaConfig | Gpt2Config):
        return f"{config.model.family} is no transformer"
    if config.parallel.offload:
        return "parallel.offload is on"
    return ""


def settled(config: Config, system: System) -> tuple[list[str], Found]:
    """Overrides for the trainer. A tensor or pipeline size above 1, a micro-batch and recomputing stay as they are."""
    asked = config.parallel
    fixed = Fixed(
        tp=asked.tensor if asked.tensor > 1 else 0,
        pp=asked.pipeline if asked.pipeline > 1 else 0,
        micro=0 if config.batch.micro == "auto" else config.batch.micro,
        recompute=asked.recompute,
        compiled=config.compile.mode != "none",
    )
    model, size = transformer(config.model, config.data.seq_len), config.batch.size
    found = best(Space(model, system, Batch(size, size), config.precision, fixed=fixed)).runnable
    if found is None:
        machines = f"{system.nodes} x {system.name}"
        message = f"no layout of batch.size {size} fits into {machines} with what the settings fix"
        raise ConfigError([Problem("parallel", message, "take more nodes, another batch.size, or fix less")])
    words = [f"parallel.{key}={value}" for key, value in parallel(found.layout).items()]
    return [*words, f"batch.micro={found.layout.micro_batch}"], found
