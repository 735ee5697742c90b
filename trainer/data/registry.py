"""The data sources: the class of each `data.kind`."""

# ruff: noqa: PLC0415 - a run imports only the source that it reads.
from __future__ import annotations

from typing import cast

from trainer.config.schema import Config, DecoderConfig, ResNetConfig
from trainer.data.source import Source


def open_source(config: Config) -> Source:
    """Open the data set of a checked configuration, or raise a ConfigError that says why it cannot be read."""
    if config.data.kind == "tokens":
        return _open_tokens(config, cast(DecoderConfig, config.model))
    if config.data.kind == "images":
        return _open_images(config, cast(ResNetConfig, config.model))
    return _make_synthetic(config)


def _open_tokens(config: Config, model: DecoderConfig) -> Source:
    from trainer.data.tokens import TokenShards

    return TokenShards(config.data.path, config.data.seq_len or model.seq_len, model.vocab_size)


def _open_images(config: Config, model: ResNetConfig) -> Source:
    from trainer.data.images import ImageFolder

    return ImageFolder(config.data.path, model.image_size, model.classes, config.run.seed)


def _make_synthetic(config: Config) -> Source:
    from trainer.data import synthetic

    model, samples, seed = config.model, config.data.samples, config.run.seed
    if isinstance(model, DecoderConfig):
        return synthetic.Tokens(samples, config.data.seq_len or model.seq_len, model.vocab_size, seed)
    if isinstance(model, ResNetConfig):
        return synthetic.Images(samples, model.image_size, model.classes, seed)
    return synthetic.Vectors(samples, model.inputs, model.classes, seed)
