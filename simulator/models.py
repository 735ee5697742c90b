"""Look up models by name: the trainer's presets and published models (data/models.yaml)."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simulator.model import Experts, LatentAttention, Model, Transformer
from simulator.sequential_models import build_sequential_model
from trainer.config import load
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.models import (
    DecoderConfig,
    Gpt2Config,
    LlamaLikeConfig,
    MlpConfig,
    ModelConfig,
    MoeConfig,
    ResNetConfig,
)
from trainer.config.schema import Config

DATA = Path(__file__).with_name("data") / "models.yaml"


@dataclass(frozen=True)
class NamedModel:
    """A transformer and the name it was looked up by."""

    name: str
    model: Transformer
    preset: Config | None
    """The trainer's preset of this name, if there is one."""


def find_model(name: str) -> NamedModel:
    """Return the transformer of that name; raise ConfigError with the closest names if there is none."""
    if name in load.list_presets():
        config = load.load(name, [])
        return NamedModel(name, build_transformer(config.model, config.data.seq_len), config)
    if name in _table():
        return NamedModel(name, _from_table(_table()[name]), None)
    near = get_close_matches(name, list_model_names(), n=3, cutoff=0.4)
    fix = f"did you mean {' or '.join(near)}?" if near else "choose one of them"
    raise ConfigError([ConfigProblem("model", f"{name!r} is not known; allowed: {', '.join(list_model_names())}", fix)])


def list_model_names() -> list[str]:
    """Return the names of all transformers; other presets have no tokens to plan by."""
    presets = [name for name in load.list_presets() if isinstance(load.load(name, []).model, DecoderConfig)]
    return sorted({*presets, *_table()})


def build_model(config: ModelConfig, seq_len: int = 0) -> Model:
    """Build any model of the trainer; `seq_len` 0 means the model's default."""
    return (
        build_sequential_model(config)
        if isinstance(config, MlpConfig | ResNetConfig)
        else build_transformer(config, seq_len)
    )


def build_transformer(config: ModelConfig, seq_len: int = 0) -> Transformer:
    """Build a transformer; `seq_len` 0 means the model's default."""
    if isinstance(config, LlamaLikeConfig):
        ffn, kv_heads, head_width, gated = config.ffn, config.kv_heads, config.head_dim, True
    elif isinstance(config, Gpt2Config):
        ffn, kv_heads, head_width, gated = 4 * config.dim, config.heads, 0, False
    else:
        message = f"{config.family} has no tokens to plan by"
        raise ConfigError([ConfigProblem("model", message, f"choose one of {', '.join(list_model_names())}")])
    experts = None
    if isinstance(config, MoeConfig):
        experts = Experts(count=config.experts, per_token=config.top_k, ffn=config.ffn)
    return Transformer(
        layers=config.layers,
        hidden=config.dim,
        heads=config.heads,
        kv_heads=kv_heads,
        head_width=head_width,
        ffn=ffn,
        gated=gated,
        vocab=config.vocab_size,
        seq=seq_len or config.seq_len,
        tied=config.tie_embeddings,
        experts=experts,
    )


def _from_table(entry: dict[str, Any]) -> Transformer:
    parts = {
        key: kind(**entry[key]) for key, kind in (("experts", Experts), ("latent", LatentAttention)) if key in entry
    }
    return Transformer(**{**entry, **parts})


@cache
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = yaml.safe_load(DATA.read_text())
    return table
