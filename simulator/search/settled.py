"""`parallel.strategy: auto`, settled before a job is submitted: the fastest layout on the machines that it will get."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.models import build_transformer
from simulator.search.best import Found, best
from simulator.search.space import Batch, Fixed, Space
from simulator.search.trainer_config import parallel
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.schema import Config, Gpt2Config, LlamaConfig

DEAR = 0.05
"""Share of a step that a setting may cost before it is worth a word."""
FREE: dict[str, Any] = {field.name: field.default for field in fields(Fixed)}


def why_not(config: Config) -> str:
    """Why the choice is left to the trainer, which makes it by the memory that it finds; empty where it is not."""
    if not isinstance(config.model, LlamaConfig | Gpt2Config):
        return f"{config.model.family} is no transformer"
    if config.parallel.offload:
        return "parallel.offload is on"
    return ""


def settled(config: Config, system: System, rates: Rates | None = None) -> tuple[list[str], Found]:
    """Overrides for the trainer. A tensor or pipeline size above 1, a micro-batch and recomputing stay as they are."""
    found = _fastest(config, system, _fixed(config), rates)
    if found is None:
        size, machines = config.batch.size, f"{system.nodes} x {system.name}"
        message = f"no layout of batch.size {size} fits into {machines} with what the settings fix"
        raise ConfigError([ConfigProblem("parallel", message, "take more nodes, another batch.size, or fix less")])
    words = [f"parallel.{key}={value}" for key, value in parallel(found.layout).items()]
    return [*words, f"batch.micro={found.layout.micro_batch}"], found


def dear(config: Config, system: System, found: Found) -> dict[str, Found]:
    """Settings that cost more than a little: what each would be if it alone were free, and the layout with it."""
    fixed, better = _fixed(config), {}
    for field, free in FREE.items():
        if getattr(fixed, field) == free:
            continue
        other = _fastest(config, system, replace(fixed, **{field: free}))
        if other and found.prediction.step_s > (1 + DEAR) * other.prediction.step_s:
            better[_word(field, other.layout)] = other
    return better


def _fastest(config: Config, system: System, fixed: Fixed, rates: Rates | None = None) -> Found | None:
    model, size = build_transformer(config.model, config.data.seq_len), config.batch.size
    return best(Space(model, system, Batch(size, size), config.precision, fixed=fixed, rates=rates)).runnable


def _fixed(config: Config) -> Fixed:
    asked = config.parallel
    return Fixed(
        tp=asked.tensor if asked.tensor > 1 else 0,
        pp=asked.pipeline if asked.pipeline > 1 else 0,
        micro=0 if config.batch.micro == "auto" else config.batch.micro,
        recompute=asked.recompute,
        compiled=config.compile.mode != "none",
    )


def _word(field: str, layout: Layout) -> str:
    words = {
        "tp": f"parallel.tensor={layout.tp}",
        "pp": f"parallel.pipeline={layout.pp}",
        "micro": f"batch.micro={layout.micro_batch}",
        "recompute": f"parallel.recompute={layout.recompute}",
        "compiled": "compile.mode=blocks",
    }
    return words[field]
