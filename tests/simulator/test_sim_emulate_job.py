"""Conversion of trainer settings to the simulator's model and layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.job import DEFAULT_LAYOUT, Job, layout_from_config
from simulator.model import Transformer
from simulator.sequential_models import build_sequential_model
from trainer.config.load import load
from trainer.config.models import MlpConfig, ResNetConfig
from trainer.models.shape import shape_of


@pytest.mark.parametrize("preset", ["tiny-mlp", "mlp", "tiny-resnet", "resnet18", "resnet50"])
def test_layers_add_up_to_the_model_weights_and_products(preset: str) -> None:
    model = load(preset, []).model
    assert isinstance(model, MlpConfig | ResNetConfig)
    layers, shape = build_sequential_model(model).layers, shape_of(model)
    assert sum(layer.weights for layer in layers) == shape.params
    assert sum(layer.rows * layer.inner * layer.columns for layer in layers) == shape.products


def test_work_per_rank_is_independent_of_the_number_of_ranks() -> None:
    config = load("tiny-llama", ["precision=bf16", "parallel.recompute=full", "parallel.bucket_mb=7"])
    job = Job(config, micro=2, share=6)
    expected = replace(DEFAULT_LAYOUT, dp=16, micro_batch=2, global_batch=96, recompute="full", bucket_mb=7)
    assert job.layout(16) == expected
    assert job.layout(64) == replace(expected, dp=64, global_batch=384)
    assert isinstance(job.model, Transformer)
    assert (job.units(16), job.unit) == (16 * 6 * 64, "tokens")


@pytest.mark.parametrize(
    ("ranks", "expected"), [(1, (4, 48)), (4, (4, 12)), (8, (3, 6)), (16, (3, 3)), (48, (1, 1)), (5, None), (64, None)]
)
def test_batch_is_split_over_ranks_if_divisible(ranks: int, expected: tuple[int, int] | None) -> None:
    job = Job(load("tiny-llama", []), micro=4, share=8).shared_by(ranks, 48)
    assert (None if job is None else (job.micro, job.share)) == expected


def test_context_ranks_are_counted_to_the_shards() -> None:
    settings = ["parallel.strategy=hsdp", "parallel.context=2", "parallel.shard=4"]
    layout = layout_from_config(load("tiny-llama", settings), ranks=16, per_node=4, micro=1)
    assert (layout.dp, layout.cp, layout.shard, layout.gpus) == (8, 2, 4, 16)


def test_image_models_count_images() -> None:
    job = Job(load("tiny-resnet", []), micro=2, share=4)
    assert (job.units(8), job.unit) == (32, "images")
