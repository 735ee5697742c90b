"""Synthetic samples do not depend on the batch they are in, and models can learn them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trainer.config.models import Gpt2Config, LlamaConfig, MlpConfig, ResNetConfig
from trainer.config.schema import Config, DataConfig
from trainer.data.registry import open_source

MODELS: dict[str, Any] = {
    "llama": LlamaConfig(vocab_size=512, seq_len=32),
    "gpt2": Gpt2Config(vocab_size=100, seq_len=32),
    "resnet": ResNetConfig(image_size=32, classes=10),
    "mlp": MlpConfig(inputs=20, classes=5),
}


def config(model, **data):
    return Config(name="test", model=model, data=DataConfig(**data))


@pytest.mark.parametrize("family", MODELS)
def test_a_sample_does_not_depend_on_the_other_samples_of_its_batch(family):
    source = open_source(config(MODELS[family], samples=1000))
    assert source.length == 1000
    ids = np.array([7, 999, 0, 7])
    together = source.fetch(ids, 0)
    for row, sample in enumerate(ids):
        alone = source.fetch(np.array([sample]), 3)
        for name in ("inputs", "targets"):
            assert np.array_equal(together[name][row], alone[name][0])
    assert not np.array_equal(together["inputs"][0], together["inputs"][1])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_bigrams_predict_most_tokens(family):
    vocab = MODELS[family].vocab_size
    batch = open_source(config(MODELS[family])).fetch(np.arange(2000), 0)
    inputs, targets = batch["inputs"], batch["targets"]
    assert inputs.dtype == targets.dtype == np.int64
    assert inputs.shape == (2000, 32)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.min() >= 0
    assert inputs.max() < vocab
    follows = np.zeros((vocab, vocab))
    np.add.at(follows, (inputs[:1000].ravel(), targets[:1000].ravel()), 1)
    guessed = follows.argmax(1)[inputs[1000:]] == targets[1000:]
    assert 0.92 < guessed.mean() < 0.96


@pytest.mark.parametrize(("family", "dtype", "shape"), [("resnet", np.uint8, (3, 32, 32)), ("mlp", np.float32, (20,))])
def test_classes_are_separable(family, dtype, shape):
    batch = open_source(config(MODELS[family])).fetch(np.arange(600), 0)
    inputs, targets = batch["inputs"], batch["targets"]
    assert inputs.dtype == dtype
    assert inputs.shape == (600, *shape)
    assert targets.dtype == np.int64
    assert set(targets.tolist()) == set(range(MODELS[family].classes))
    flat = inputs.reshape(600, -1).astype(np.float64)
    centres = np.stack([flat[:400][targets[:400] == label].mean(0) for label in range(MODELS[family].classes)])
    distances = ((flat[400:, None] - centres) ** 2).sum(2)
    assert (distances.argmin(1) == targets[400:]).mean() > 0.95


def test_sequences_may_be_shorter_than_the_model_allows():
    source = open_source(config(MODELS["llama"], seq_len=8))
    assert source.fetch(np.arange(2), 0)["inputs"].shape == (2, 8)
