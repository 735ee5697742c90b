"""The trainer's settings of the loss, of reduced gradients and of context parallelism decide memory and traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.commands.layout_option import parse_layout
from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.job import layout_from_config
from simulator.layout import Layout
from simulator.machines.instances import system
from simulator.memory.peak import MemoryPeak, predict_memory
from simulator.model import Transformer
from simulator.models import build_transformer, find_model
from simulator.rows.run import parse_run_row
from simulator.rows.tables import read_table
from simulator.search import auto_layout
from simulator.search.trainer_config import unsupported_reason
from simulator.step.prediction import predict
from simulator.trainers import DATA
from trainer.config.check import check, check_world
from trainer.config.load import load

H200 = System(name="h200", gpu=load_gpu("h200"), gpus_per_node=8, nodes=4, intra_gb_s=450, inter_gb_s=400)
TOKENS, VOCABULARY, HIDDEN = 2 * 8192, 128256, 4096


def resolve(*settings: str, ranks: int = 32, micro: int = 2) -> tuple[Transformer, Layout]:
    config = load("llama-8b", [f"batch.micro={micro}", *settings])
    assert check(config) == check_world(config, ranks, 8) == []
    return build_transformer(config.model, config.data.seq_len), layout_from_config(config, ranks, 8, micro)


def memory(*settings: str, ranks: int = 32) -> MemoryPeak:
    return predict_memory(*resolve(*settings, ranks=ranks), H200)


def test_a_loss_in_chunks_needs_memory_for_one_chunk_of_logits() -> None:
    logits = {chunk: memory(f"loss.chunk_tokens={chunk}").parts["logits"] for chunk in (0, 2048, 4096, TOKENS)}
    assert memory().parts["logits"] == logits[4096]
    assert logits[0] == logits[TOKENS] == pytest.approx(8 * TOKENS * VOCABULARY, rel=0.02)
    assert logits[4096] - logits[2048] == pytest.approx(8 * 2048 * VOCABULARY)
    # The gradient of the head is summed over the chunks in fp32.
    assert logits[4096] == pytest.approx(8 * 4096 * VOCABULARY + 4 * VOCABULARY * HIDDEN + 4 * TOKENS * HIDDEN)


def test_fp8_makes_the_products_of_a_step_faster() -> None:
    in_bf16, in_fp8 = (predict(*resolve(f"fp8.scaling={scaling}"), H200) for scaling in ("none", "tensor"))
    assert 0.6 < in_fp8.step_s / in_bf16.step_s < 0.9


def test_tensor_ranks_have_a_part_of_the_chunk() -> None:
    split, whole = (memory(f"parallel.tensor={ranks}").parts["logits"] for ranks in (4, 1))
    hidden = 4 * TOKENS * HIDDEN
    assert split - hidden == pytest.approx((whole - hidden) / 4)


@pytest.mark.parametrize(("chunk", "measured_gb"), [(4096, 75.0), (0, 107.0)])
def test_memory_of_a_run_on_one_gpu_is_close_to_the_measured(chunk: int, measured_gb: float) -> None:
    """Measured with a loss that held 8 more bytes per logit of a chunk, or 2 of a whole micro-batch (benchmarks.md)."""
    settings = ["parallel.strategy=single", "data.seq_len=4096", "batch.micro=8", "batch.size=8", "compile.mode=blocks"]
    config = load("llama-1b", [*settings, f"loss.chunk_tokens={chunk}"])
    model = build_transformer(config.model, config.data.seq_len)
    peak = predict_memory(model, layout_from_config(config, 1, 1, 8), H200).total
    since = 8 * chunk * VOCABULARY or 2 * 8 * 4096 * VOCABULARY
    assert (peak + since) / 1e9 == pytest.approx(measured_gb, rel=0.05)


def test_the_search_uses_the_loss_of_the_settings() -> None:
    def find_micro(*settings: str) -> int:
        config = load("llama-1b", ["parallel.strategy=auto", "parallel.recompute=none", "batch.size=256", *settings])
        return auto_layout.choose_layout(config, system("p5.48xlarge", 1))[1].layout.micro_batch

    assert find_micro() > find_micro("loss.chunk_tokens=0")


def test_a_layout_of_another_trainer_has_whole_logits() -> None:
    assert parse_layout("dp=8").chunk_tokens == 4096
    assert parse_layout("dp=8,chunk_tokens=0").loss == "in_head"
    assert parse_layout("dp=8,trainer=torchtitan").loss == "plain"
    assert not [row for row in read_table(DATA.with_name("memory.csv")) if parse_run_row(row).layout.loss == "in_head"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_in_bf16_halve_the_traffic(strategy: str) -> None:
    def exchange(*settings: str) -> float:
        config = load("llama-1b", [f"parallel.strategy={strategy}", "parallel.zero=2", "batch.micro=1", *settings])
        layout = layout_from_config(config, 64, 8, 1)
        parts = predict(build_transformer(config.model), replace(layout, bucket_mb=1), system("p5.48xlarge", 8)).parts
        return parts["data"]

    assert exchange("parallel.reduce=bf16", "batch.size=64") < exchange("batch.size=64")


def test_the_search_only_chooses_layouts_that_can_reduce_in_bf16() -> None:
    config = load("llama-8b", ["parallel.strategy=auto", "parallel.reduce=bf16"])
    overrides, chosen = auto_layout.choose_layout(config, system("p5en.48xlarge", 4))
    assert chosen.layout.gradient_bytes == 2
    assert check(load("llama-8b", ["parallel.reduce=bf16", *overrides])) == []
    sharded = replace(chosen.layout, pp=2, dp=16, zero=1, shard=0)
    assert "does not sum gradients in bf16" in unsupported_reason(find_model("llama-8b").model, sharded)
    # A single rank has nothing to reduce.
    alone = load("llama-1b", ["parallel.strategy=auto", "parallel.reduce=bf16", "batch.size=8"])
    overrides, _ = auto_layout.choose_layout(alone, replace(H200, nodes=1, gpus_per_node=1))
    assert "parallel.reduce=fp32" in overrides
    assert check(load("llama-1b", ["parallel.reduce=bf16", "batch.size=8", *overrides])) == []


def test_the_search_chooses_no_pipeline_for_delayed_scales() -> None:
    settings = ["parallel.strategy=auto", "precision=bf16", "fp8.scaling=delayed"]
    overrides, chosen = auto_layout.choose_layout(load("llama-8b", settings), system("p5en.48xlarge", 4))
    assert (chosen.layout.pp, chosen.layout.tp) == (1, 1)
    assert check(load("llama-8b", [*settings, *overrides])) == []


def test_context_ranks_wait_for_all_keys_and_store_them() -> None:
    settings = ("parallel.context=4", "parallel.recompute=none", "data.seq_len=8192")
    model, own = resolve(*settings)
    ring = replace(own, gathers_keys=False)
    gathered, passed = (predict(model, layout, H200) for layout in (own, ring))
    assert gathered.parts["context"] > passed.parts["context"] > 0
    # Keys and values in bf16 of the three quarters of each sequence that other ranks compute.
    keys = 2 * 2 * 2 * (8192 * 3 // 4) * model.kv_heads * 128
    more = gathered.memory.parts["activations"] - passed.memory.parts["activations"]
    assert more == pytest.approx(model.layers * keys)
    # Recomputation gathers them again for one layer at a time.
    again = replace(own, recompute="full")
    assert predict(model, again, H200).parts["context"] > gathered.parts["context"]
    more = predict_memory(model, again, H200).parts["activations"]
    more -= predict_memory(model, replace(again, gathers_keys=False), H200).parts["activations"]
    assert more <= keys * (1 + 1e-9)
