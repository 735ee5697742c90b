"""ResNet and MLP: step time and memory compared with measurements, and properties of every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.peak import GIB
from simulator.model import Model, SequentialModel
from simulator.models import build_model
from simulator.parameters import count_parameters
from simulator.step.prediction import predict
from trainer.config import load
from trainer.config.models import MlpConfig, ResNetConfig
from trainer.models.shape import shape_of

H200 = System(name="h200", gpu=load_gpu("h200"), gpus_per_node=8, nodes=4, intra_gb_s=450, inter_gb_s=400)
A100 = System(name="a100", gpu=load_gpu("a100"), gpus_per_node=8, nodes=1, intra_gb_s=300, inter_gb_s=0)
PRESETS = ("resnet18", "resnet50", "mlp", "tiny-mlp", "tiny-resnet")


def preset(name: str) -> Model:
    return build_model(load.load(name, []).model)


def alone(batch: int, dtype: str = "bf16", compiled: bool = False) -> Layout:
    return Layout(micro_batch=batch, global_batch=batch, dtype=dtype, compiled=compiled)


MEASURED = [
    (18, alone(256), 45.5, 3.21),
    (50, alone(32), 16.6, 1.66),
    (50, alone(256), 106.5, 10.99),
    (50, alone(128, "fp32"), 60.5, 10.61),
    (50, alone(256, compiled=True), 85.5, 12.31),
    (101, alone(128), 82.2, 8.33),
]
"""Depth, layout, step time in ms and memory in GiB of the trainer's models on one H200 with torch 2.11."""


@pytest.mark.parametrize(("depth", "layout", "step_ms", "memory_gib"), MEASURED)
def test_resnets_match_measurements_on_one_h200(depth: int, layout: Layout, step_ms: float, memory_gib: float) -> None:
    prediction = predict(build_model(ResNetConfig(depth=depth)), layout, H200)
    assert prediction.step_s * 1e3 == pytest.approx(step_ms, rel=0.15)
    assert prediction.memory.total / GIB == pytest.approx(memory_gib, rel=0.15)


@pytest.mark.parametrize(("ranks", "images_per_s"), [(1, 938), (8, 7248)])
def test_resnet50_in_tf32_matches_published_throughput(ranks: int, images_per_s: float) -> None:
    """NVIDIA/DeepLearningExamples:PyTorch/Classification/ConvNets/resnet50v1.5/README.md, DGX A100 80 GB."""
    layout = replace(alone(256, "tf32"), dp=ranks, global_batch=256 * ranks)
    prediction = predict(preset("resnet50"), layout, A100)
    assert layout.global_batch / prediction.step_s == pytest.approx(images_per_s, rel=0.1)


@pytest.mark.parametrize("name", PRESETS)
def test_trainer_presets_are_predicted(name: str) -> None:
    config = load.load(name, [])
    model = build_model(config.model)
    layout = Layout(dp=8, micro_batch=4, global_batch=32, dtype=config.precision)
    prediction = predict(model, layout, H200)
    assert prediction.fits
    assert 0 < prediction.low_s < prediction.step_s < prediction.high_s
    assert count_parameters(model).total == shape_of(config.model).params


def test_reason_names_a_batch_that_fits() -> None:
    prediction = predict(preset("resnet50"), alone(8192), H200)
    assert not prediction.fits
    assert "largest: activations" in prediction.reason
    assert "fits with micro_batch 2048" in prediction.reason


SIZES = st.sampled_from([16, 64, 256])
MODELS = st.one_of(
    st.builds(ResNetConfig, depth=st.sampled_from([18, 50, 101])).map(build_model),
    st.builds(
        MlpConfig,
        inputs=st.sampled_from([64, 784]),
        hidden=st.lists(st.sampled_from([64, 4096]), min_size=1).map(tuple),
    ).map(build_model),
)


@given(MODELS, SIZES)
def test_more_samples_need_more_time_and_memory(model: SequentialModel, batch: int) -> None:
    small, large = (predict(model, alone(size), H200) for size in (batch, 4 * batch))
    assert small.step_s <= large.step_s * (1 + 1e-9) <= 4 * small.step_s
    assert small.memory.total < large.memory.total


@given(MODELS, SIZES, st.sampled_from([0, 1, 3]))
def test_more_ranks_do_not_change_the_work_per_rank(model: SequentialModel, batch: int, zero: int) -> None:
    alone_step = predict(model, alone(batch), H200)
    shared_step = predict(model, replace(alone(batch), dp=16, global_batch=16 * batch, zero=zero), H200)
    local_parts = ("compute", "memory bound", "host")
    assert {name: shared_step.parts[name] for name in local_parts} == {
        name: alone_step.parts[name] for name in local_parts
    }
    assert shared_step.parts["data"] > 0
    assert alone_step.parts["data"] == 0


@given(MODELS, SIZES)
def test_recompute_trades_time_for_memory(model: SequentialModel, batch: int) -> None:
    stored, recomputed = (predict(model, replace(alone(batch), recompute=mode), H200) for mode in ("none", "full"))
    assert recomputed.step_s > stored.step_s
    assert recomputed.memory.total <= stored.memory.total


@given(MODELS, SIZES)
def test_compressed_gradients_take_no_longer(model: SequentialModel, batch: int) -> None:
    plain = replace(alone(batch), dp=32, global_batch=32 * batch)
    assert predict(model, replace(plain, compression=0.25), H200).step_s <= predict(model, plain, H200).step_s
