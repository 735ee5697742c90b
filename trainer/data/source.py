"""Where samples come from: the protocol, and the source that a config asks for."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from trainer.config.problem import ConfigError, Problem
from trainer.config.schema import Config, Gpt2Config, LlamaConfig, ResNetConfig
from trainer.data.order import Ids

Arrays = dict[str, NDArray[Any]]


class Source(Protocol):
    """Samples by number. `fetch` must be a pure function of its arguments and is called by several threads."""

    @property
    def length(self) -> int:
        """Samples in an epoch."""

    def fetch(self, ids: Ids, epoch: int) -> Arrays:
        """{"inputs", "targets"}, first dimension in the order of `ids`."""


def source_for(config: Config) -> Source:
    if config.data.kind == "synthetic":
        return _synthetic(config)
    if not config.data.path:
        fix = f"data.path=FOLDER with the {config.data.kind}, or data.kind=synthetic"
        raise ConfigError([Problem("data.path", f"is empty, and data.kind is {config.data.kind}", fix)])
    return _tokens(config) if config.data.kind == "tokens" else _images(config)


def _synthetic(config: Config) -> Source:
    from trainer.data import synthetic  # noqa: PLC0415  # a run imports only the source that it uses

    model, samples, seed = config.model, config.data.samples, config.run.seed
    if isinstance(model, LlamaConfig | Gpt2Config):
        return synthetic.Tokens(samples, _sequence(config, model.seq_len), model.vocab_size, seed)
    if isinstance(model, ResNetConfig):
        return synthetic.Images(samples, model.image_size, model.classes, seed)
    return synthetic.Vectors(samples, model.inputs, model.classes, seed)


def _tokens(config: Config) -> Source:
    from trainer.data.tokens import TokenShards  # noqa: PLC0415

    model = config.model
    if not isinstance(model, LlamaConfig | Gpt2Config):
        raise _unfit(config, "llama or gpt2")
    return TokenShards(config.data.path, _sequence(config, model.seq_len), model.vocab_size)


def _images(config: Config) -> Source:
    from trainer.data.images import ImageFolder  # noqa: PLC0415

    model = config.model
    if not isinstance(model, ResNetConfig):
        raise _unfit(config, "resnet")
    return ImageFolder(config.data.path, model.image_size, model.classes, config.run.seed)


def _sequence(config: Config, longest: int) -> int:
    wanted = config.data.seq_len or longest
    if wanted > longest:
        message = f"is {wanted}, longer than the model's {longest}"
        raise ConfigError([Problem("data.seq_len", message, f"set it to {longest} or less, or raise model.seq_len")])
    return wanted


def _unfit(config: Config, families: str) -> ConfigError:
    message = f"is {config.data.kind}, which a model of family {config.model.family} cannot read"
    return ConfigError([Problem("data.kind", message, f"use data.kind=synthetic, or a model of family {families}")])
