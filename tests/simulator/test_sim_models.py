"""Parameter counts of the trainer's presets and of published models, and errors for unknown names."""

from __future__ import annotations

import re

import pytest

from simulator.model import SequentialModel, Transformer
from simulator.models import build_model, find_model, list_model_names
from simulator.parameters import count_parameters
from trainer.config import load
from trainer.config.errors import ConfigError
from trainer.models.shape import shape_of

BILLIONS = re.compile(r"-(\d+(?:\.\d+)?)b$")
PUBLISHED = sorted(name for name in set(list_model_names()) - set(load.list_presets()) if BILLIONS.search(name))


@pytest.mark.parametrize("name", load.list_presets())
def test_preset_parameter_counts_match_the_trainer(name: str) -> None:
    config = load.load(name, []).model
    model = build_model(config)
    counted = shape_of(config).params
    # Positions, biases and the last norm of language models are not counted, which matters in the smallest models.
    assert count_parameters(model).total == pytest.approx(
        counted, rel=0.0 if isinstance(model, SequentialModel) else 0.15
    )
    if counted > 1e8 and isinstance(model, Transformer):
        assert count_parameters(model).total == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts_match_the_model_names(name: str) -> None:
    billions = BILLIONS.search(name)
    assert billions
    assert count_parameters(find_model(name).model).total / 1e9 == pytest.approx(float(billions[1]), rel=0.13)


def test_mixture_of_experts_counts_every_expert() -> None:
    assert count_parameters(find_model("mixtral-8x7b").model).total / 1e9 == pytest.approx(46.7, rel=0.02)
    assert count_parameters(find_model("deepseek-v3").model).total / 1e9 == pytest.approx(671, rel=0.02)


def test_unknown_model_error_suggests_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"llama-8b.*did you mean"):
        find_model("lama-8b")


@pytest.mark.parametrize("name", ["resnet50", "mlp"])
def test_models_without_tokens_are_rejected(name: str) -> None:
    assert name not in list_model_names()
    with pytest.raises(ConfigError, match="no tokens to plan by"):
        find_model(name)
