"""The data sources: the class of each `data.kind`."""

# ruff: noqa: PLC0415 - a run imports only the source that it reads.
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.models import DecoderConfig, ResNetConfig
from trainer.config.schema import Config
from trainer.data.source import Source
from trainer.data.split import hold_out


@dataclass(frozen=True)
class Sources:
    """The samples to train on and, if there is an evaluation set, those to evaluate on."""

    training: Source
    evaluation: Source | None = None


def open_sources(config: Config) -> Sources:
    """Open the data sets of a checked configuration, or raise a ConfigError that says why one cannot be read."""
    source = _open(config)
    if config.evaluation.path:
        return Sources(source, _open_evaluation(config))
    if not config.evaluation.share:
        return Sources(source)
    training, held_out = hold_out(source, config.evaluation.share)
    if not training.length or not held_out.length:
        message = f"{config.evaluation.share:g} of {source.length} samples leaves none to "
        message += "evaluate on" if training.length else "train on"
        fix = "use a larger share or more data" if training.length else "use a smaller share"
        raise ConfigError([ConfigProblem("evaluation.share", message, fix)])
    return Sources(training, held_out)


def open_source(config: Config) -> Source:
    """Open the samples to train on, or raise a ConfigError that says why they cannot be read."""
    return open_sources(config).training


def _open_evaluation(config: Config) -> Source:
    try:
        return _open(replace(config, data=replace(config.data, path=config.evaluation.path)))
    except ConfigError as error:
        # The same checks apply to both folders, but they call the folder data.path.
        texts = [(problem.where, problem.message, problem.fix) for problem in error.problems]
        renamed = [[text.replace("data.path", "evaluation.path") for text in problem] for problem in texts]
        raise ConfigError([ConfigProblem(*problem) for problem in renamed]) from error


def _open(config: Config) -> Source:
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
