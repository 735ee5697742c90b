"""The data sources: the class of each `data.kind`."""

# ruff: noqa: PLC0415 - a run imports only the source that it reads.
from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.mixture import MixtureEntry, name_sources, parse_mixture
from trainer.config.models import DecoderConfig, ResNetConfig
from trainer.config.schema import Config
from trainer.data.source import Source
from trainer.data.split import hold_out

if TYPE_CHECKING:
    from trainer.data.tokens import TokenShards


@dataclass(frozen=True)
class Sources:
    """The samples to train on and, if there is an evaluation set, those to evaluate on."""

    training: Source
    evaluation: Source | None = None
    notes: tuple[str, ...] = ()
    """What the log should say about them, such as the share of padding."""


def open_sources(config: Config) -> Sources:
    """Open the data sets of a checked configuration, or raise a ConfigError that says why one cannot be read."""
    reserved = _count_evaluation_bytes(config)
    if config.data.mixture:
        sources = _open_mixture(config, reserved)
    else:
        sources = _hold_out(_open(config, reserved), config.evaluation.share)
    if not config.evaluation.path:
        return sources
    with _naming("evaluation.path"):
        evaluation = _open(_select_evaluation(config))
    return Sources(sources.training, evaluation, (*sources.notes, *_list_notes(evaluation)))


def open_source(config: Config) -> Source:
    """Open the samples to train on, or raise a ConfigError that says why they cannot be read."""
    return open_sources(config).training


def _hold_out(source: Source, share: float, owner: str = "") -> Sources:
    if not share:
        return Sources(source, notes=_list_notes(source))
    training, held_out = hold_out(source, share)
    if not training.length or not held_out.length:
        message = f"{share:g} of {source.length} samples{owner} leaves none to "
        message += "evaluate on" if training.length else "train on"
        fix = "use a larger share or more data" if training.length else "use a smaller share"
        raise ConfigError([ConfigProblem("evaluation.share", message, fix)])
    return Sources(training, held_out, _list_notes(source))


def _list_notes(source: Source) -> tuple[str, ...]:
    notes: tuple[str, ...] = getattr(source, "notes", ())
    return notes


def _open_mixture(config: Config, reserved: int) -> Sources:
    from trainer.data.mixture import Ingredient, Mixture, derive_seed
    from trainer.data.tokens import find_other_tokenizers

    entries = [entry for entry in parse_mixture(config.data.mixture) if isinstance(entry, MixtureEntry)]
    problems: list[ConfigProblem] = []
    opened: list[tuple[str, MixtureEntry, TokenShards]] = []
    for name, entry in zip(name_sources([entry.path for entry in entries]), entries, strict=True):
        try:
            with _naming("data.mixture"):
                opened.append(
                    (name, entry, _open_tokens(config, entry.path, derive_seed(config.run.seed, len(opened)), reserved))
                )
        except ConfigError as error:
            problems += error.problems
    problems += find_other_tokenizers({entry.path: source for _, entry, source in opened})
    problems += _check_cache(config, [source for _, _, source in opened], reserved)
    if problems:
        raise ConfigError(problems)
    with _naming("data.mixture"):
        separated = [_separate_documents(config, source) for _, _, source in opened]
    parts = [
        _hold_out(source, config.evaluation.share, f" of {entry.path}")
        for (_, entry, _), source in zip(opened, separated, strict=True)
    ]
    training = [
        Ingredient(name, part.training, entry.weight) for (name, entry, _), part in zip(opened, parts, strict=True)
    ]
    held_out = [
        Ingredient(name, part.evaluation, entry.weight)
        for (name, entry, _), part in zip(opened, parts, strict=True)
        if part.evaluation
    ]
    notes = tuple(note for part in parts for note in part.notes)
    return Sources(Mixture(training), Mixture(held_out) if held_out else None, notes)


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Name another setting in errors about a folder: the same checks apply to all folders, but call it data.path."""
    try:
        yield
    except ConfigError as error:
        texts = [(problem.where, problem.message, problem.fix) for problem in error.problems]
        renamed = [[text.replace("data.path", setting) for text in problem] for problem in texts]
        raise ConfigError([ConfigProblem(*problem) for problem in renamed]) from error


def _open(config: Config, reserved: int = 0) -> Source:
    if config.data.kind == "tokens":
        source = _open_tokens(config, config.data.path, config.run.seed, reserved)
        if problems := list(_check_cache(config, [source], reserved)):
            raise ConfigError(problems)
        return _separate_documents(config, source)
    if config.data.kind == "images":
        return _open_images(config, cast(ResNetConfig, config.model))
    return _make_synthetic(config)


def _open_tokens(config: Config, path: str, seed: int, reserved: int) -> TokenShards:
    """Open token shards; `reserved` is the part of the cache that other shards need."""
    from trainer.data.shard_folder import Reading
    from trainer.data.tokens import TokenShards

    model, data = cast(DecoderConfig, config.model), config.data
    # At least one byte, because 0 means no limit; `_check_cache` rejects such a cache.
    limit = max(1, round(data.cache_gb * 1e9) - reserved) if data.cache_gb else 0
    reading = Reading(seed, data.shuffle_shards, data.cache, limit)
    return TokenShards(path, data.seq_len or model.seq_len, model.vocab_size, reading)


def _separate_documents(config: Config, shards: TokenShards) -> Source:
    if config.data.documents == "joined":
        return shards
    from trainer.data.documents import PackedDocuments, SeparateDocuments

    return PackedDocuments(shards) if config.data.documents == "packed" else SeparateDocuments(shards)


def _select_evaluation(config: Config) -> Config:
    """Return a configuration whose data are those of evaluation.path.

    Every evaluation reads the same samples from all shards, so they stay open and are not read in windows.
    """
    return replace(config, data=replace(config.data, path=config.evaluation.path, mixture=(), shuffle_shards=0))


def _count_evaluation_bytes(config: Config) -> int:
    """Return the bytes that a remote evaluation set needs of a limited cache."""
    if not (config.data.cache_gb and config.evaluation.path):
        return 0
    with _naming("evaluation.path"):
        return _open_tokens(_select_evaluation(config), config.evaluation.path, 0, 0).cache_bytes


def _check_cache(config: Config, sources: list[TokenShards], reserved: int) -> Iterator[ConfigProblem]:
    """Check that a limited cache has room for the shards that are read at the same time and for `reserved` bytes."""
    limit_gb, needed_gb = config.data.cache_gb, (reserved + sum(source.cache_bytes for source in sources)) / 1e9
    if limit_gb and needed_gb > limit_gb:
        message = f"{limit_gb:g} is too little for two times data.shuffle_shards={config.data.shuffle_shards} shards"
        message += f" and those of evaluation.path, {needed_gb:.3g} GB" if reserved else f", {needed_gb:.3g} GB"
        fix = f"use {math.ceil(needed_gb * 100) / 100:g} or more, or smaller shards"
        yield ConfigProblem("data.cache_gb", message, fix)


def _open_images(config: Config, model: ResNetConfig) -> Source:
    from trainer.data.images import ImageFolder

    return ImageFolder(config.data.path, model.image_size, model.classes, config.run.seed)


def _make_synthetic(config: Config) -> Source:
    from trainer.data import synthetic

    model, samples, seed = config.model, config.data.samples, config.run.seed
    if isinstance(model, DecoderConfig):
        is_separate = config.data.documents == "separate"
        return synthetic.Tokens(samples, config.data.seq_len or model.seq_len, model.vocab_size, seed, is_separate)
    if isinstance(model, ResNetConfig):
        return synthetic.Images(samples, model.image_size, model.classes, seed)
    return synthetic.Vectors(samples, model.inputs, model.classes, seed)
