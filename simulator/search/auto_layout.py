"""Resolve `parallel.strategy: auto` before a job is submitted: the fastest layout on the machines that it will get."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.job import base_layout
from simulator.layout import Layout
from simulator.models import build_transformer
from simulator.search.fastest import TimedLayout, find_fastest
from simulator.search.space import Batch, Fixed, Space
from simulator.search.trainer_config import parallel_settings
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.models import DecoderConfig
from trainer.config.schema import Config
from trainer.optimizers.groups import explain_no_tensor_parallel

COSTLY_SHARE = 0.05
"""Share of a step that a fixed setting may cost before it is mentioned."""
FREE: dict[str, Any] = {field.name: field.default for field in fields(Fixed)}


def skip_reason(config: Config) -> str:
    """Return why the choice is left to the trainer, which chooses by free memory; empty if it is made here."""
    if not isinstance(config.model, DecoderConfig):
        return f"{config.model.family} is not a transformer"
    if config.parallel.offload:
        return "parallel.offload is on"
    if config.parallel.context > 1:
        return f"parallel.context is {config.parallel.context}"
    if config.lora.rank:
        return f"lora.rank is {config.lora.rank}, and predictions are for training all weights"
    return ""


def choose_layout(config: Config, system: System, rates: Rates | None = None) -> tuple[list[str], TimedLayout]:
    """Return overrides for the trainer, and the layout with its prediction.

    A tensor or pipeline size above 1, a micro-batch and recomputing stay as configured.
    """
    fastest = _find(config, system, _fixed(config), rates)
    if fastest is None:
        size, machines = config.batch.size, f"{system.nodes} x {system.name}"
        message = f"no layout of batch.size {size} fits into {machines} with the settings that are fixed"
        raise ConfigError(
            [ConfigProblem("parallel", message, "use more nodes, another batch.size, or fewer fixed settings")]
        )
    overrides = [f"parallel.{key}={value}" for key, value in parallel_settings(fastest.layout).items()]
    return [*overrides, f"batch.micro={fastest.layout.micro_batch}"], fastest


def list_costly_settings(config: Config, system: System, chosen: TimedLayout) -> dict[str, TimedLayout]:
    """Return a better value for each fixed setting that slows the step noticeably, with the resulting layout."""
    fixed, better = _fixed(config), {}
    for field, free in FREE.items():
        if getattr(fixed, field) == free or (field == "tp" and config.parallel.tensor == 1):
            continue
        other = _find(config, system, replace(fixed, **{field: free}))
        if other and chosen.prediction.step_s > (1 + COSTLY_SHARE) * other.prediction.step_s:
            better[_override(field, other.layout)] = other
    return better


def _find(config: Config, system: System, fixed: Fixed, rates: Rates | None = None) -> TimedLayout | None:
    model, size = build_transformer(config.model, config.data.seq_len), config.batch.size
    space = Space(model, system, Batch(size, size), fixed=fixed, rates=rates, base=base_layout(config))
    return find_fastest(space).runnable


def _fixed(config: Config) -> Fixed:
    parallel = config.parallel
    can_split = explain_no_tensor_parallel(config.optimizer) is None and config.fp8.scaling == "none"
    free_tp = 0 if can_split else 1
    free_pp = 1 if config.fp8.scaling == "delayed" else 0
    return Fixed(
        tp=parallel.tensor if parallel.tensor > 1 else free_tp,
        pp=parallel.pipeline if parallel.pipeline > 1 else free_pp,
        micro=0 if config.batch.micro == "auto" else config.batch.micro,
        recompute=parallel.recompute,
        compiled=config.compile.mode != "none",
    )


def _override(field: str, layout: Layout) -> str:
    overrides = {
        "tp": f"parallel.tensor={layout.tp}",
        "pp": f"parallel.pipeline={layout.pp}",
        "micro": f"batch.micro={layout.micro_batch}",
        "recompute": f"parallel.recompute={layout.recompute}",
        "compiled": "compile.mode=blocks",
    }
    return overrides[field]
