"""Decide which rule updates a parameter, and with which weight decay, from its name and shape. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from trainer.config.errors import ConfigProblem
from trainer.config.schema import OptimizerConfig

RuleName = Literal["adamw", "muon", "sgd"]
_MATRIX_DIMENSIONS = 2


@dataclass(frozen=True)
class Group:
    """The parameters that are updated together: by the same rule, with the same weight decay."""

    rule: RuleName
    decay: float


@dataclass(frozen=True)
class DecayPattern:
    """An entry of optimizer.decay_groups."""

    pattern: str
    decay: float


def choose_group(name: str, shape: Sequence[int], config: OptimizerConfig, *, is_embedding: bool) -> Group:
    """Return the group of a parameter."""
    default = config.weight_decay if len(shape) > 1 else 0.0
    patterns = [entry for entry in parse_decay_groups(config) if isinstance(entry, DecayPattern)]
    decay = next((entry.decay for entry in patterns if fnmatchcase(name, entry.pattern)), default)
    is_excluded = is_embedding or any(fnmatchcase(name, pattern) for pattern in config.muon_exclude)
    if config.name == "muon" and (is_excluded or len(shape) != _MATRIX_DIMENSIONS):
        return Group("adamw", decay)
    return Group(config.name, decay)


def explain_no_tensor_parallel(config: OptimizerConfig) -> ConfigProblem | None:
    """Return why the parameters must not be split by tensor parallelism; None if they may be."""
    if config.name == "muon":
        message = "muon needs whole matrices, but tensor parallelism splits them"
        return ConfigProblem("optimizer.name", message, "use adamw, or set parallel.tensor to 1")
    if config.moments == "int8":
        message = "int8 stores blocks of a row, but tensor parallelism splits rows"
        return ConfigProblem("optimizer.moments", message, "use bf16 or fp32, or set parallel.tensor to 1")
    return None


def list_moments(rule: RuleName, config: OptimizerConfig) -> tuple[str, ...]:
    """Return the names of the moments that a rule keeps of a parameter."""
    if rule == "adamw":
        return ("first", "second")
    return ("momentum",) if rule == "muon" or config.momentum else ()


def parse_decay_groups(config: OptimizerConfig) -> list[DecayPattern | ConfigProblem]:
    """Return each entry of optimizer.decay_groups, or what is wrong with it."""
    return [_parse_decay_group(entry) for entry in config.decay_groups]


def _parse_decay_group(entry: str) -> DecayPattern | ConfigProblem:
    pattern, separator, text = entry.rpartition("=")
    try:
        decay = float(text)
    except ValueError:
        decay = math.nan
    if separator and pattern and math.isfinite(decay) and decay >= 0:
        return DecayPattern(pattern, decay)
    message = f"{entry!r} is not PATTERN=DECAY with a decay of 0 or more"
    return ConfigProblem("optimizer.decay_groups", message, "write entries such as embed.*=0")
