"""Engines with random tokens to run them on, for the benchmarks that compare engines."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from trainer.config.layout import resolve_layout
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.models.init import fill
from trainer.models.registry import build_network
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Batch, Engine, Recipe
from trainer.parallel.mesh import Mesh


def make_engine(settings: list[str], rank: int, ranks: int, device: torch.device) -> tuple[Config, Engine, Batch]:
    """Build a model spread over the ranks, and return its settings, engine and this rank's share of a batch."""
    config = load("llama-1b" if device.type == "cuda" else "tiny-llama", settings)
    recipe = Recipe(config.parallel, config.precision, config.compile, config.fp8, config.communication)
    layout = resolve_layout(config.parallel, ranks, ranks)
    mesh = Mesh(layout, rank, device, uses_fully_shard=recipe.uses_fully_shard(layout))
    weights = partial(fill, seed=1, device=device)
    engine = parallelize(partial(build_network, config), recipe, mesh, fill=weights)
    model: Any = config.model
    size = config.batch.size // layout.dp_size
    tokens = torch.randint(model.vocab_size, (size, model.seq_len + 1), device=device)
    return config, engine, {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
