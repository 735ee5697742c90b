"""Context parallelism: each rank of a context group computes a part of every sequence."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem, list_nearest_multiples
from trainer.config.layout import find_length_factor
from trainer.models.sequence_part import SequencePart
from trainer.parallel.engine import Batch, Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units


def split_sequences(model: nn.Module, _units: Units, _recipe: Recipe, mesh: Mesh) -> None:
    """Tell a decoder which part of each sequence it computes."""
    if mesh.layout.context == 1:
        return
    decoder: Any = model
    if not hasattr(decoder, "part"):
        message = f"{mesh.layout.context}, but {type(model).__name__} does not know how to attend across ranks"
        fix = "set it to 1, or train a model of trainer.models, such as Llama"
        raise ConfigError([ConfigProblem("parallel.context", message, fix)])
    decoder.part = _find_part(mesh)


def take_part(batch: Batch, mesh: Mesh) -> Batch:
    """Return the batch with this rank's part of each sequence; `documents` stay whole, as keys of all ranks need them.

    The ranks of a context group must be given the same samples.
    """
    if mesh.layout.context == 1:
        return batch
    ranks, length = mesh.layout.context, batch["inputs"].shape[1]
    factor, divisor = find_length_factor(ranks, mesh.layout.tensor)
    if length % factor:
        message = f"{length} tokens per sample are not divisible by {divisor} = {factor}"
        fix = f"use {list_nearest_multiples(length, factor)} tokens"
        raise ConfigError([ConfigProblem("data.seq_len", message, fix)])
    part = _find_part(mesh)
    return {name: value if name == "documents" else part.take(value) for name, value in batch.items()}


def _find_part(mesh: Mesh) -> SequencePart:
    return SequencePart(mesh.coordinate("context"), mesh.layout.context, mesh.group("context"), mesh.layout.tensor)
