"""Trainers' differences and their effect on a step: overlap, narrow dtypes, groups, uneven stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.hardware.gpus import load_gpu
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.model import Experts, Transformer
from simulator.rows.run import parse_run_row
from simulator.step.compute import ComputeTimes
from simulator.step.kernels import SCALED, Kernels
from simulator.step.prediction import predict

MODEL = Transformer(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocab=128256, seq=4096)
MIXTURE = replace(MODEL, experts=Experts(count=64, per_token=8, ffn=1408, shared=1, dense_layers=1))
ROW = {
    "gpu_type": "h100", "gpus": "64", "gpus_per_node": "8", "nodes": "8", "layers": "32", "hidden": "4096",
    "heads": "32", "kv_heads": "8", "ffn": "14336", "gated_mlp": "1", "vocab": "128256", "seq": "4096", "tp": "2",
    "pp": "4", "dp": "8", "cp": "1", "global_batch": "128", "zero_stage": "1", "recompute": "none", "dtype": "bf16",
}  # fmt: skip


def parts(model: Transformer = MODEL, nodes: int = 1, **changes: object) -> dict[str, float]:
    layout = replace(Layout(dp=8 * nodes, micro_batch=1, global_batch=64, framework="megatron"), **changes)  # type: ignore[arg-type]
    system = System(name="made", gpu=load_gpu("h100"), gpus_per_node=8, nodes=nodes, intra_gb_s=450.0, inter_gb_s=400.0)
    return predict(model, layout, system).parts


def test_overlap_hides_most_of_what_tensor_and_data_ranks_exchange() -> None:
    shown = parts(nodes=4, tp=4, dp=8, zero=1, sequence_parallel=True)
    hidden = parts(nodes=4, tp=4, dp=8, zero=1, sequence_parallel=True, overlaps=True)
    assert 0 < hidden["tensor"] < 0.7 * shown["tensor"]
    assert 0 < hidden["data"] < shown["data"]
    assert hidden["compute"] == shown["compute"]


def test_casts_leave_fp8_less_than_twice_as_fast_where_rows_are_narrow() -> None:
    kernels = Kernels(load_gpu("h100"), Rates())

    def gain(width: int, dtype: str) -> float:
        wide, narrow = (kernels.product(8192, width, width, operand_dtype) for operand_dtype in ("bf16", dtype))
        return (wide.forward + wide.backward) / (narrow.forward + narrow.backward)

    assert gain(1024, "fp8") < gain(4096, "fp8") < gain(16384, "fp8") < 2.6
    assert gain(4096, SCALED) < gain(4096, "fp8"), "a scale that is sought first is one more pass"


def test_sides_that_128_does_not_divide_are_slower() -> None:
    kernels = Kernels(load_gpu("a100"), Rates())
    each = {width: kernels.product(4096, width, width, "bf16").forward / width**2 for width in (14336, 14400)}
    assert each[14400] > 1.08 * each[14336]


def test_groups_of_zero_reduce_among_each_other_too() -> None:
    eight, whole = (parts(nodes=8, zero=1, shard=shard, framework="torch")["data"] for shard in (8, 64))
    inside = parts(nodes=1, zero=1, shard=8, framework="torch")["data"]
    assert eight > inside
    assert whole > inside


def test_weights_that_ranks_send_in_turn_take_longer_the_more_ranks_there_are() -> None:
    def data(nodes: int, trainer: str) -> float:
        return parts(nodes=nodes, zero=1, framework="torch", trainer=trainer, global_batch=8 * nodes)["data"]

    assert data(64, "internevo") - data(64, "") > 4 * (data(16, "internevo") - data(16, "")) > 0


def test_stages_that_keep_their_weights_gather_them_once_in_a_step() -> None:
    def gather(batch: int, regathers: bool = False) -> float:
        changes = {"pp": 2, "dp": 8, "zero": 3, "framework": "torch", "global_batch": batch, "regathers": regathers}
        return parts(nodes=2, **changes)["gather"]

    assert gather(64) == pytest.approx(gather(256))
    assert gather(256, regathers=True) > 3 * gather(64, regathers=True) > 3 * gather(64), "unless they split them again"


@pytest.mark.parametrize(
    ("software", "gpus", "again"),
    [
        ("torchtitan", 64, False),
        ("muster", 64, False),
        ("torch FSDP2", 64, True),
        ("torch FSDP2", 1024, False),
        ("Megatron-LM", 64, False),
    ],
)
def test_whether_stages_gather_again_depends_on_trainer_and_run_size(software: str, gpus: int, again: bool) -> None:
    wide = {"gpus": str(gpus), "nodes": str(gpus // 8), "dp": str(gpus // 8), "global_batch": str(2 * gpus)}
    assert parse_run_row({**ROW, **wide, "zero_stage": "3", "software": software}).layout.regathers is again


def test_our_replicas_are_summed_once_in_a_step_and_scattered_gradients_every_time() -> None:
    def gather(batch: int, trainer: str) -> float:
        changes = {"zero": 3, "shard": 8, "framework": "torch", "trainer": trainer, "global_batch": batch}
        return parts(nodes=4, **changes)["gather"]

    assert gather(32, "muster") == pytest.approx(gather(32, "torchtitan"))
    assert gather(256, "muster") < gather(256, "torchtitan")
    assert gather(256, "muster") > 3 * gather(32, "muster")


def test_our_replicas_of_zero_2_are_summed_once_in_a_step_too() -> None:
    def data(nodes: int, count: int) -> float:
        changes = {"zero": 2, "shard": 8, "framework": "torch", "trainer": "muster", "global_batch": 8 * nodes * count}
        return parts(nodes=nodes, **changes)["data"]

    # What every further micro-batch adds stays inside a node, where its ranks share the gradients.
    assert data(4, 8) - data(4, 1) == pytest.approx(data(1, 8) - data(1, 1)) != 0
    assert data(4, 1) > data(1, 1)


def test_a_last_stage_with_a_layer_less_hides_the_head() -> None:
    even, uneven = (replace(MODEL, layers=layers, vocab=32000) for layers in (32, 31))
    assert parts(uneven, pp=4, dp=2)["vocabulary"] < parts(even, pp=4, dp=2)["vocabulary"]


def test_ranks_that_pass_keys_on_attend_slower() -> None:
    alone = ComputeTimes(MODEL, load_gpu("h100"), Rates()).layer(Layout(micro_batch=1), False).attention.forward
    split = ComputeTimes(replace(MODEL, seq=8192), load_gpu("h100"), Rates()).layer(Layout(micro_batch=1, cp=2), False)
    # Half of the tokens of twice the sequence see twice as much each.
    assert split.attention.forward > 1.1 * 2 * alone


def test_tokens_that_travel_once_to_a_rank_are_fewer() -> None:
    each, once = (parts(MIXTURE, ep=8, deduplicates=flag) for flag in (False, True))
    assert once["experts"] < 0.8 * each["experts"]
    assert once["memory bound"] < each["memory bound"]


def test_tokens_assigned_in_order_travel_less_and_fill_experts_evenly() -> None:
    learned, balanced = (parts(MIXTURE, ep=8, deduplicates=True, trainer=name) for name in ("", "automodel"))
    assert balanced["experts"] < 0.4 * learned["experts"], "one rank has all eight experts, not 5.25 of 8"
    assert balanced["compute"] < learned["compute"]


def test_gradients_of_experts_meet_only_those_of_the_same_experts() -> None:
    dense, spread = (parts(MIXTURE, nodes=2, ep=ep, zero=1)["data"] for ep in (1, 16))
    assert spread < 0.5 * dense


def test_a_pipeline_that_does_not_say_is_fed_with_small_micro_batches() -> None:
    described = parse_run_row({**ROW, "software": "Megatron-LM"})
    assert described.layout.micro_batch == 1
    assert described.layout.virtual_stages == 1
    assert not described.layout.overlaps


def test_recipes_that_overlap_also_interleave_layers() -> None:
    described = parse_run_row({**ROW, "software": "NeMo Megatron-Core"})
    assert described.layout.overlaps
    assert described.layout.virtual_stages == 2
    assert "virtual_stages=2" in described.inferred
    with_stages = parse_run_row({**ROW, "software": "NeMo Megatron-Core", "virtual_stages": "1"})
    assert with_stages.layout.virtual_stages == 1


def test_embedding_and_loss_may_have_places_in_a_pipeline() -> None:
    row = {**ROW, "layers": "126", "pp": "8", "dp": "4", "virtual_stages": "16", "software": "NeMo Megatron-Core"}
    assert parse_run_row(row).layout.virtual_stages == 16


def test_the_h100_of_96_gb_has_less_power_and_bandwidth() -> None:
    usual, other = (parse_run_row({**ROW, "gpu_memory_gb": size}).system.gpu for size in ("80", "96"))
    assert (other.watts, other.memory_gb_s) == (500, 2400)
    assert usual.watts == 700
    peaks = [Kernels(gpu, Rates()).peak("bf16") for gpu in (usual, other)]
    assert 0.75 * peaks[0] < peaks[1] < 0.95 * peaks[0]
