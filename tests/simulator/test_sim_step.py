"""Properties of step time that hold whatever the fitted constants are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware.gpus import load_gpu
from simulator.hardware.rates import load_fitted_rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.model import Experts, Layer, SequentialModel, Transformer
from simulator.step.prediction import predict

MODEL = Transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocab=128256, seq=4096)
MIXTURE = replace(MODEL, experts=Experts(count=64, per_token=8, ffn=1408, shared=1, dense_layers=1))


def system(nodes: int = 1, name: str = "h100") -> System:
    return System(
        name="synthetic",
        gpu=load_gpu(name),
        gpus_per_node=8,
        nodes=nodes,
        intra_gb_s=450.0,
        inter_gb_s=400.0,
        network="infiniband",
    )


def layout(**changes: object) -> Layout:
    return replace(Layout(dp=8, micro_batch=1, global_batch=64, zero=3), **changes)


def seconds(
    job_layout: Layout, nodes: int = 1, model: Transformer | SequentialModel = MODEL, name: str = "h100"
) -> float:
    return predict(model, job_layout, system(nodes, name)).step_s


def test_parts_add_up_to_the_step_inside_the_interval() -> None:
    prediction = predict(MODEL, layout(), system())
    assert sum(prediction.parts.values()) == pytest.approx(prediction.step_s)
    assert prediction.low_s < prediction.step_s < prediction.high_s
    assert prediction.bottleneck == "compute"
    assert min(prediction.parts.values()) >= 0


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_slower_compute_during_exchanges_never_shortens_a_step(zero: int) -> None:
    """One bucket holds all gradients of a small model: no reduction overlaps with compute."""
    small = replace(MODEL, layers=1, hidden=256, heads=2, kv_heads=2, ffn=512, vocab=512)
    steps = [
        predict(small, layout(zero=zero), system(), replace(load_fitted_rates(), slowed=slowed)).step_s
        for slowed in (0.0, 0.4)
    ]
    assert steps[0] <= steps[1]


def test_zero_2_reduces_after_every_micro_batch() -> None:
    def data(count: int, **changes: object) -> float:
        data_layout = layout(**{"dp": 32, "global_batch": 32 * count, **changes})
        return predict(MODEL, data_layout, system(4)).parts["data"]

    assert data(1, zero=2) == pytest.approx(data(1, zero=1)), "a single micro-batch is reduced once in both cases"
    assert data(8, zero=1) == pytest.approx(data(1, zero=1))
    assert data(8, zero=2) > 2 * data(2, zero=2)
    assert data(8, zero=2, trainer="transformers") == pytest.approx(data(8, zero=1, trainer="transformers"))
    pipeline = [data(8, dp=16, pp=2, zero=zero) for zero in (1, 2)]
    assert pipeline[0] == pytest.approx(pipeline[1]), "pipeline stages reduce after the last micro-batch"


@given(
    more=st.sampled_from([2, 4, 8]),
    nodes=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([0, 1, 3]),
    framework=st.sampled_from(["torch", "megatron"]),
)
def test_more_gpus_are_faster_but_never_superlinear(more: int, nodes: int, zero: int, framework: str) -> None:
    few = layout(dp=8 * nodes, global_batch=512 * nodes * more, zero=zero, framework=framework)
    many = replace(few, dp=8 * nodes * more)
    assert seconds(many, nodes * more) < seconds(few, nodes)
    assert seconds(many, nodes * more) > seconds(few, nodes) / (1.02 * more), (
        "the speed-up never exceeds the number of GPUs"
    )


@given(seq=st.sampled_from([512, 1024, 2048, 4096, 8192]), tp=st.sampled_from([1, 2, 4, 8]))
def test_more_tokens_or_samples_never_take_less_time(seq: int, tp: int) -> None:
    node_layout = layout(dp=8 // tp, tp=tp, sequence_parallel=tp > 1)
    short, long = replace(MODEL, seq=seq), replace(MODEL, seq=2 * seq)
    # If launching kernels takes longer than the work, twice the work takes the same time.
    assert seconds(node_layout, model=long) >= seconds(node_layout, model=short)
    assert seconds(replace(node_layout, global_batch=128)) > seconds(node_layout)


def test_recompute_costs_at_most_one_forward() -> None:
    none, full = (seconds(layout(recompute=mode)) for mode in ("none", "full"))
    assert none < full < none * 1.45


def test_pipeline_bubble_shrinks_with_micro_batches_and_interleaving() -> None:
    pipeline = layout(dp=2, pp=4, zero=1, framework="megatron")
    few, many = (predict(MODEL, replace(pipeline, global_batch=size), system()) for size in (16, 128))
    assert few.parts["pipeline bubble"] / few.step_s > many.parts["pipeline bubble"] / many.step_s
    interleaved = predict(MODEL, replace(pipeline, global_batch=16, virtual_stages=4, schedule="interleaved"), system())
    assert interleaved.parts["pipeline bubble"] < few.parts["pipeline bubble"]
    split = predict(MODEL, replace(pipeline, global_batch=16, schedule="zero_bubble"), system())
    assert split.parts["pipeline bubble"] < few.parts["pipeline bubble"] / 2


def test_newer_gpus_and_fp8_are_faster() -> None:
    times = [seconds(layout(), name=name) for name in ("a100", "h100", "b200")]
    assert times == sorted(times, reverse=True)
    assert seconds(layout(dtype="fp8")) < seconds(layout())


def test_small_layers_are_limited_by_the_host() -> None:
    small = replace(MODEL, hidden=512, heads=8, kv_heads=8, ffn=1408, seq=256)
    assert predict(small, layout(zero=0), system()).bottleneck in ("host", "step")
    compiled = predict(small, layout(zero=0, compiled=True), system())
    assert compiled.parts["host"] < predict(small, layout(zero=0), system()).parts["host"]


def test_experts_on_other_nodes_take_longer() -> None:
    near = predict(MIXTURE, layout(ep=8, framework="megatron"), system())
    far = predict(MIXTURE, layout(dp=64, ep=64, global_batch=512, framework="megatron"), system(8))
    assert far.parts["experts"] > near.parts["experts"] > 0


def test_intervals_are_wider_with_less_evidence() -> None:
    def width(nodes: int, name: str) -> float:
        prediction = predict(MODEL, layout(dp=8 * nodes, global_batch=64 * nodes), system(nodes, name))
        return prediction.high_s / prediction.low_s

    assert width(4, "h100") > width(1, "h100")
    assert width(1, "v100") > width(1, "h100")


def test_sequential_model_is_timed() -> None:
    stack = SequentialModel(
        layers=(Layer(rows=1, inner=4096, columns=4096, weights=4096 * 4097, saved=4096, moved=24576),) * 8
    )
    layer_layout = Layout(dp=1, micro_batch=4096, global_batch=4096)
    assert seconds(layer_layout, model=stack) < seconds(
        replace(layer_layout, micro_batch=8192, global_batch=8192), model=stack
    )
    spread = predict(stack, replace(layer_layout, dp=8, global_batch=8 * 4096), system())
    assert spread.parts["data"] > 0
