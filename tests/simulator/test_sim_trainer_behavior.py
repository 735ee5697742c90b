"""Differences between trainers and their effect on a step: overlap, narrow dtypes, groups, uneven stages."""

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
    layout = replace(Layout(dp=8 * nodes, micro_batch=1, global_batch=64, framework="megatron"), **changes)
    system = System(
        name="synthetic", gpu=load_gpu("h100"), gpus_per_node=8, nodes=nodes, intra_gb_s=450.0, inter_gb_s=400.0
    )
    return predict(model, layout, system).parts


def test_overlap_hides_tensor_and_data_exchanges() -> None:
    shown = parts(nodes=4, tp=4, dp=8, zero=1, sequence_parallel=True)
    hidden = parts(nodes=4, tp=4, dp=8, zero=1, sequence_parallel=True, overlaps=True)
    assert 0 < hidden["tensor"] < 0.7 * shown["tensor"]
    assert 0 < hidden["data"] < shown["data"]
    assert hidden["compute"] == shown["compute"]


def test_fp8_gains_less_on_narrow_matrices() -> None:
    kernels = Kernels(load_gpu("h100"), Rates())

    def gain(width: int, dtype: str) -> float:
        wide, narrow = (kernels.product(8192, width, width, operand_dtype) for operand_dtype in ("bf16", dtype))
        return (wide.forward + wide.backward) / (narrow.forward + narrow.backward)

    assert gain(1024, "fp8") < gain(4096, "fp8") < gain(16384, "fp8") < 2.6
    assert gain(4096, SCALED) < gain(4096, "fp8"), "computing the scale first takes one more pass"


def test_matrix_sides_indivisible_by_128_are_slower() -> None:
    kernels = Kernels(load_gpu("a100"), Rates())
    each = {width: kernels.product(4096, width, width, "bf16").forward / width**2 for width in (14336, 14400)}
    assert each[14400] > 1.08 * each[14336]


def test_shard_groups_also_reduce_with_each_other() -> None:
    eight, whole = (parts(nodes=8, zero=1, shard=shard, framework="torch")["data"] for shard in (8, 64))
    inside = parts(nodes=1, zero=1, shard=8, framework="torch")["data"]
    assert eight > inside
    assert whole > inside


def test_sequential_weight_broadcasts_grow_with_ranks() -> None:
    def data(nodes: int, trainer: str) -> float:
        return parts(nodes=nodes, zero=1, framework="torch", trainer=trainer, global_batch=8 * nodes)["data"]

    assert data(64, "internevo") - data(64, "") > 4 * (data(16, "internevo") - data(16, "")) > 0


def test_pipeline_stages_gather_weights_once_per_step() -> None:
    def gather(batch: int, regathers: bool = False) -> float:
        changes = {"pp": 2, "dp": 8, "zero": 3, "framework": "torch", "global_batch": batch, "regathers": regathers}
        return parts(nodes=2, **changes)["gather"]

    assert gather(64) == pytest.approx(gather(256))
    assert gather(256, regathers=True) > 3 * gather(64, regathers=True) > 3 * gather(64), (
        "unless they reshard after each use"
    )


@pytest.mark.parametrize(
    ("software", "gpus", "regathers"),
    [
        ("torchtitan", 64, False),
        ("muster", 64, False),
        ("torch FSDP2", 64, True),
        ("torch FSDP2", 1024, False),
        ("Megatron-LM", 64, False),
    ],
)
def test_regathering_depends_on_trainer_and_run_size(software: str, gpus: int, regathers: bool) -> None:
    wide = {"gpus": str(gpus), "nodes": str(gpus // 8), "dp": str(gpus // 8), "global_batch": str(2 * gpus)}
    assert parse_run_row({**ROW, **wide, "zero_stage": "3", "software": software}).layout.regathers is regathers


def test_muster_reduces_replicas_once_per_step() -> None:
    def gather(batch: int, trainer: str) -> float:
        changes = {"zero": 3, "shard": 8, "framework": "torch", "trainer": trainer, "global_batch": batch}
        return parts(nodes=4, **changes)["gather"]

    assert gather(32, "muster") == pytest.approx(gather(32, "torchtitan"))
    assert gather(256, "muster") < gather(256, "torchtitan")
    assert gather(256, "muster") > 3 * gather(32, "muster")


def test_muster_reduces_zero_2_replicas_once_per_step() -> None:
    def data(nodes: int, count: int) -> float:
        changes = {"zero": 2, "shard": 8, "framework": "torch", "trainer": "muster", "global_batch": 8 * nodes * count}
        return parts(nodes=nodes, **changes)["data"]

    # Further micro-batches add only exchanges inside a node, whose ranks shard the gradients.
    assert data(4, 8) - data(4, 1) == pytest.approx(data(1, 8) - data(1, 1)) != 0
    assert data(4, 1) > data(1, 1)


def test_shorter_last_stage_hides_the_head() -> None:
    even, uneven = (replace(MODEL, layers=layers, vocab=32000) for layers in (32, 31))
    assert parts(uneven, pp=4, dp=2)["vocabulary"] < parts(even, pp=4, dp=2)["vocabulary"]


def test_context_parallel_attention_is_slower() -> None:
    alone = ComputeTimes(MODEL, load_gpu("h100"), Rates()).layer(Layout(micro_batch=1), False).attention.forward
    split = ComputeTimes(replace(MODEL, seq=8192), load_gpu("h100"), Rates()).layer(Layout(micro_batch=1, cp=2), False)
    # Each rank has the same number of tokens, but each token attends to twice as many.
    assert split.attention.forward > 1.1 * 2 * alone


def test_deduplicated_tokens_reduce_expert_traffic() -> None:
    each, once = (parts(MIXTURE, ep=8, deduplicates=flag) for flag in (False, True))
    assert once["experts"] < 0.8 * each["experts"]
    assert once["memory bound"] < each["memory bound"]


def test_balanced_routing_reduces_expert_traffic_and_compute() -> None:
    learned, balanced = (parts(MIXTURE, ep=8, deduplicates=True, trainer=name) for name in ("", "automodel"))
    assert balanced["experts"] < 0.4 * learned["experts"], (
        "all eight experts of a token are on one rank; learned routing reaches 5.25 ranks"
    )
    assert balanced["compute"] < learned["compute"]


def test_expert_gradients_are_reduced_within_their_group() -> None:
    dense, spread = (parts(MIXTURE, nodes=2, ep=ep, zero=1)["data"] for ep in (1, 16))
    assert spread < 0.5 * dense


def test_pipeline_micro_batch_defaults_to_one() -> None:
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


def test_embedding_and_loss_may_count_as_pipeline_layers() -> None:
    row = {**ROW, "layers": "126", "pp": "8", "dp": "4", "virtual_stages": "16", "software": "NeMo Megatron-Core"}
    assert parse_run_row(row).layout.virtual_stages == 16


def test_h100_with_96_gb_has_less_power_and_bandwidth() -> None:
    usual, other = (parse_run_row({**ROW, "gpu_memory_gb": size}).system.gpu for size in ("80", "96"))
    assert (other.watts, other.memory_gb_s) == (500, 2400)
    assert usual.watts == 700
    peaks = [Kernels(gpu, Rates()).peak("bf16") for gpu in (usual, other)]
    assert 0.75 * peaks[0] < peaks[1] < 0.95 * peaks[0]
