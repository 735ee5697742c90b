"""The settings of a run whose model is an object: made from the arguments of `trainer.api.Trainer` and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from trainer.config.check import check_own_model
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import from_dict, to_dict
from trainer.config.models import MlpConfig, ModelConfig
from trainer.config.schema import (
    CheckpointConfig,
    CompileConfig,
    Config,
    OptimizerConfig,
    ParallelConfig,
    Precision,
    RunConfig,
    ScheduleConfig,
)

_STRATEGIES = ("single", "ddp", "fsdp", "hsdp")


def make_own_config(  # noqa: PLR0913
    *,
    strategy: str | ParallelConfig,
    precision: Precision,
    optimizer: OptimizerConfig | None,
    schedule: ScheduleConfig | None,
    compile: CompileConfig | None,
    steps: int,
    micro_batch: int | None,
    checkpoint: CheckpointConfig,
    run: RunConfig,
) -> Config:
    """Return the settings with plain values, or raise a ConfigError with all problems of values and combinations."""
    _check_types(optimizer=optimizer, schedule=schedule, compile=compile)
    config = Config(
        name=_make_name(run.folder),
        model=cast(ModelConfig, MlpConfig()),  # unused, because the model is given
        steps=steps,
        optimizer=optimizer or OptimizerConfig(),
        schedule=schedule or ScheduleConfig(),
        precision=precision,
        parallel=_parse_strategy(strategy),
        compile=compile or CompileConfig(),
        checkpoint=checkpoint,
        run=run,
    )
    checked = from_dict(to_dict(config))
    problems = [*check_own_model(checked), *_check_own_values(checked, micro_batch)]
    if problems:
        raise ConfigError(problems)
    return checked


def _check_types(**arguments: object) -> None:
    kinds = {"optimizer": OptimizerConfig, "schedule": ScheduleConfig, "compile": CompileConfig}
    problems = [
        ConfigProblem(
            name, f"is a {type(value).__name__}", f"pass trainer.config.schema.{kinds[name].__name__}(...), or None"
        )
        for name, value in arguments.items()
        if value is not None and not isinstance(value, kinds[name])
    ]
    if problems:
        raise ConfigError(problems)


def _check_own_values(config: Config, micro_batch: int | None) -> Iterator[ConfigProblem]:
    if micro_batch is not None and micro_batch < 1:
        yield ConfigProblem("micro_batch", f"{micro_batch} is below 1", "use 1 or more, or None")
    if config.parallel.strategy == "auto":
        message = "auto, which is chosen from the settings of a model family, but the model is your own"
        fix = f"use one of {', '.join(_STRATEGIES)}, as in ParallelConfig(strategy='fsdp')"
        yield ConfigProblem("parallel.strategy", message, fix)


def _make_name(folder: str) -> str:
    """Return the name of a run in this folder, which may contain characters that a name does not allow."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(folder).name).lstrip("._-") or "own"


def _parse_strategy(strategy: str | ParallelConfig) -> ParallelConfig:
    if isinstance(strategy, ParallelConfig):
        return strategy
    if strategy not in _STRATEGIES:
        message = f"{strategy!r} is not a strategy for your own model"
        fix = f"use one of {', '.join(_STRATEGIES)}, or a ParallelConfig"
        raise ConfigError([ConfigProblem("strategy", message, fix)])
    return replace(ParallelConfig(), strategy=cast(Any, strategy))
