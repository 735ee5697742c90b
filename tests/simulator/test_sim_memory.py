"""The effect of each layout setting on memory, and the suggested fix if a layout does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.job import layout_from_config
from simulator.layout import Layout
from simulator.memory.nearest import list_layout_changes
from simulator.memory.peak import GIB, predict_memory, suggest_change
from simulator.model import Model
from simulator.models import build_model, find_model
from simulator.parameters import checkpoint_gb, count_parameters
from simulator.trainers import identify_trainer, trainer_behavior
from trainer.config.load import load

H100 = System(name="h100", gpu=load_gpu("h100"), gpus_per_node=8, nodes=128, intra_gb_s=450, inter_gb_s=400)
SMALL = replace(H100, name="a10g", gpu=load_gpu("a10g"))
LLAMA = find_model("llama-8b").model
EIGHT = Layout(dp=8, micro_batch=1, global_batch=8, zero=3, recompute="full")


def parts(layout: Layout, model: Model = LLAMA) -> dict[str, float]:
    return predict_memory(model, layout, H100).parts


def test_zero_3_splits_sixteen_bytes_per_parameter_over_ranks() -> None:
    held = parts(EIGHT)
    assert held["weights"] + held["gradients"] + held["optimizer"] == 16 * count_parameters(LLAMA).total / 8


@pytest.mark.parametrize(
    ("zero", "split"),
    [(0, set()), (1, {"optimizer"}), (2, {"optimizer", "gradients"}), (3, {"optimizer", "gradients", "weights"})],
)
def test_each_zero_stage_splits_one_more_part(zero: int, split: set[str]) -> None:
    eight_ranks, sixteen_ranks = (
        parts(replace(EIGHT, framework="megatron", zero=zero, dp=dp, global_batch=dp)) for dp in (8, 16)
    )
    for name in ("weights", "gradients", "optimizer"):
        assert (sixteen_ranks[name] == pytest.approx(eight_ranks[name] / 2)) is (name in split), name


def test_hybrid_sharding_splits_only_within_a_shard_group() -> None:
    few, many = (parts(replace(EIGHT, dp=dp, shard=8, global_batch=dp)) for dp in (8, 64))
    assert few["optimizer"] == many["optimizer"]


def test_torch_pipeline_holds_unsharded_gradients() -> None:
    stage = count_parameters(LLAMA).total / 4
    held = parts(replace(EIGHT, dp=2, pp=4, global_batch=16))
    assert held["gradients"] > 4 * 0.9 * (stage - count_parameters(LLAMA).embedding / 2)


def test_offload_leaves_gathered_weights_and_activations_on_the_gpu() -> None:
    held = parts(replace(EIGHT, offload=True))
    assert held["weights"] == held["gradients"] == held["optimizer"] == 0
    assert held["working"] > 0
    assert held["activations"] == parts(EIGHT)["activations"]


def test_offload_below_zero_2_moves_only_the_optimizer() -> None:
    layout = replace(EIGHT, zero=1, framework="deepspeed")
    held, before = parts(replace(layout, offload=True)), parts(layout)
    assert held["optimizer"] == 0
    assert held["weights"] == before["weights"]
    assert held["gradients"] == before["gradients"]


def test_gradients_reduced_after_the_last_micro_batch_are_unsharded() -> None:
    waits = replace(EIGHT, trainer="kempnerforge", global_batch=32)
    assert parts(waits)["gradients"] == pytest.approx(4 * count_parameters(LLAMA).total)
    assert parts(replace(waits, global_batch=8))["gradients"] < parts(waits)["gradients"] / 4


def test_fp32_activations_are_twice_as_large_as_bf16() -> None:
    layout = replace(EIGHT, recompute="none")
    assert parts(replace(layout, dtype="fp32"))["activations"] == pytest.approx(2 * parts(layout)["activations"])


def test_tensor_ranks_split_logits_unless_the_trainer_gathers_them() -> None:
    layout = replace(EIGHT, tp=4, dp=2, global_batch=2, micro_batch=8, sequence_parallel=True)
    layout = replace(layout, global_batch=16)
    assert parts(layout)["logits"] < parts(replace(layout, trainer="kempnerforge"))["logits"]


def test_reserved_memory_is_reported_for_trainers_that_print_it() -> None:
    peak = predict_memory(LLAMA, EIGHT, H100)
    taken = predict_memory(LLAMA, replace(EIGHT, trainer="torchtitan"), H100)
    assert peak.reported == peak.total
    assert taken.reported > taken.total == peak.total


@pytest.mark.parametrize(
    ("software", "trainer"),
    [
        ("torchtitan, FSDP2", "torchtitan"),
        ("FSDP=4 KempnerInstitute/KempnerForge:benchmarks/x.md", "kempnerforge"),
        ("llm-foundry FSDP1", "llm-foundry"),
        ("Megatron core", ""),
    ],
)
def test_trainers_are_identified_by_name(software: str, trainer: str) -> None:
    assert identify_trainer(software) == trainer
    assert (trainer_behavior(trainer) == trainer_behavior("")) is (trainer == "")


def test_layout_that_fits_has_no_reason() -> None:
    assert predict_memory(LLAMA, EIGHT, H100).reason == ""


@pytest.mark.parametrize(
    ("seq", "layout", "fix"),
    [
        (8192, Layout(dp=8, micro_batch=1, global_batch=8, recompute="full"), "zero 1"),
        (8192, Layout(dp=8, micro_batch=16, global_batch=128, zero=3, recompute="full"), "micro_batch 4"),
        (16384, Layout(dp=8, micro_batch=1, global_batch=8, zero=3), "recompute full"),
        (16384, Layout(tp=8, micro_batch=4, global_batch=4, recompute="selective"), "sequence_parallel"),
        (65536, Layout(dp=8, micro_batch=1, global_batch=8, zero=3, recompute="full"), "tp 4, sequence_parallel"),
        (8192, Layout(micro_batch=1, global_batch=8), "4 GPUs, zero 3, recompute full"),
    ],
)
def test_reason_names_the_largest_part_and_the_nearest_change(seq: int, layout: Layout, fix: str) -> None:
    memory = predict_memory(replace(LLAMA, seq=seq), layout, H100)
    assert not memory.fits
    largest = max(memory.parts, key=lambda name: memory.parts[name])
    assert f"allowed: {H100.gpu.memory_gb:.0f} GiB; largest: {largest} " in memory.reason
    assert memory.reason.endswith(f"; fits with {fix}")


def test_suggested_change_is_the_first_that_fits() -> None:
    layout = Layout(dp=8, micro_batch=8, global_batch=64)
    suggestion = suggest_change(LLAMA, layout, H100)
    tried = []
    for name, changed in list_layout_changes(LLAMA, layout):
        if name == suggestion:
            assert predict_memory(LLAMA, changed, H100).fits
            break
        tried.append(predict_memory(LLAMA, changed, H100).fits)
    assert tried
    assert not any(tried)


def test_reason_says_that_no_similar_layout_fits() -> None:
    model = find_model("llama-405b").model
    long = replace(model, seq=1_000_000)
    assert suggest_change(long, Layout(global_batch=1), SMALL) == ""
    assert "no similar layout fits" in predict_memory(long, Layout(global_batch=1), SMALL).reason


def test_memory_is_printed_in_gibibytes() -> None:
    memory = predict_memory(LLAMA, Layout(global_batch=8), H100)
    assert f"{memory.on_device / GIB:.1f} GiB" in memory.reason


def test_offloaded_layer_inputs_need_no_device_memory() -> None:
    layout = replace(EIGHT, framework="deepspeed")
    held, before = (parts(replace(layout, trainer=name))["activations"] for name in ("bigscience", ""))
    inputs = 2 * LLAMA.layers * LLAMA.seq * LLAMA.hidden
    assert before - held == pytest.approx(inputs)


def test_compression_stores_the_unsent_gradients() -> None:
    layout = replace(EIGHT, zero=0)
    more = parts(replace(layout, compression=0.1))["gradients"] - parts(layout)["gradients"]
    assert more == pytest.approx(4 * count_parameters(LLAMA).total)


def test_the_moments_of_the_settings_decide_optimizer_memory_and_checkpoints() -> None:
    def measure(*settings: str) -> tuple[float, float]:
        config = load("llama-8b", ["parallel.strategy=fsdp", "batch.micro=1", *settings])
        model = build_model(config.model, config.data.seq_len)
        held = parts(layout_from_config(config, 8, 8, 1), model)
        return held["optimizer"], checkpoint_gb(model, config.optimizer)

    exact, saved = measure()
    assert [measure(f"optimizer.moments={kind}")[0] / exact for kind in ("bf16", "int8")] == pytest.approx(
        [1 / 2, 1 / 4], rel=0.02
    )
    assert measure("optimizer.moments=int8")[1] / saved == pytest.approx(0.5, rel=0.02)
    assert measure("optimizer.name=sgd")[1] / saved == pytest.approx(2 / 3)
    # Muon keeps a second moment only of the embedding and the head, 13 % of this model.
    assert measure("optimizer.name=muon")[0] / exact == pytest.approx(0.5 * 1.13, rel=0.02)
