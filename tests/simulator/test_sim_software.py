"""How a row's software column affects memory: reported figure, loss, bytes per weight, trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import yaml

from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.layout import Layout, Trainer
from simulator.memory.peak import CUDA_CONTEXT_BYTES, RESERVED_FACTOR, predict_memory
from simulator.models import find_model
from simulator.rows.cells import RowCells
from simulator.rows.model import model_from_row
from simulator.rows.run import parse_run_row
from simulator.rows.software import parse_memory_terms
from simulator.trainers import DATA, identify_trainer, trainer_behavior

H200 = System(name="h200", gpu=load_gpu("h200"), gpus_per_node=8, nodes=1, intra_gb_s=450, inter_gb_s=0)
LLAMA = find_model("llama-8b").model
EIGHT = Layout(dp=8, micro_batch=1, global_batch=8, zero=3, recompute="full")
ROW = {"gpu_type": "h100", "gpus": "8", "model": "llama3.1-8b", "seq": "8192", "micro_batch": "1", "global_batch": "8"}


@pytest.mark.parametrize(
    ("software", "figure", "loss", "width"),
    [
        ("memory as nvidia-smi shows it", "device", "plain", 0),
        ("reserved by the allocator", "reserved", "plain", 0),
        ("max memory allocated", "peak", "plain", 0),
        ("FSDP2, chunked cross entropy", "", "chunked", 0),
        ("transformers with Liger kernels", "", "fused", 0),
        ("pure bf16", "", "plain", 2),
        ("torchtune compile PURE", "", "plain", 2),
        ("bf16 weights, AdamW", "", "plain", 2),
        ("bf16, full AC", "", "plain", 0),
    ],
)
def test_software_terms_give_figure_loss_and_weight_bytes(software: str, figure: str, loss: str, width: int) -> None:
    terms = parse_memory_terms(software)
    assert (terms.memory_figure, terms.loss, terms.weight_bytes) == (figure, loss, width)


@pytest.mark.parametrize(
    ("software", "trainer"),
    [
        ("torchtitan llama3_h100_202412_torchtitan.md", "torchtitan-2024"),
        ("torchtitan 2025-03", "torchtitan-2024"),
        ("torchtitan llama3-8b_h200_202506_trainy.md", "torchtitan"),
        ("torchtitan", "torchtitan"),
        ("nanotron v0.5", "nanotron"),
        ("Megatron-DeepSpeed 1F1B", "megatron-deepspeed"),
        ("torchtune", "torchtune"),
    ],
)
def test_a_trainer_is_identified_with_its_version(software: str, trainer: str) -> None:
    assert identify_trainer(software) == trainer


def test_layout_allows_exactly_the_trainers_of_the_table() -> None:
    assert set(get_args(Trainer)) == {"", *yaml.safe_load(DATA.read_text())}


def test_newer_torchtitan_compiles_its_loss_with_the_layers() -> None:
    old, new = (
        parse_run_row(ROW | {"software": f"torchtitan {month}, torch.compile"}).layout
        for month in ("2024-12", "2025-06")
    )
    assert (old.loss, new.loss) == ("plain", "compiled")
    assert predict_memory(LLAMA, new, H200).parts["logits"] < predict_memory(LLAMA, old, H200).parts["logits"] / 2


def test_an_unknown_trainer_defers_gradients_if_memory_allows() -> None:
    row = ROW | {"gpu_type": "h200", "global_batch": "32", "zero_stage": "3", "recompute": "full", "software": "FSDP2"}
    assert parse_run_row(row).layout.trainer == "unknown"
    assert trainer_behavior("unknown").deferred
    tight = row | {"gpu_type": "a10g", "model": "llama3.2-3b"}
    assert parse_run_row(tight).layout.trainer == "sparing"


def test_a_failed_run_is_not_assumed_to_fit() -> None:
    row = ROW | {"gpu_type": "l40s", "gpus": "4", "global_batch": "4", "fits": "0", "software": "FSDP2"}
    row |= {"recompute": "full"}
    assert parse_run_row(row).layout.weight_bytes == 4
    assert parse_run_row(row | {"fits": "1"}).layout.weight_bytes == 2


def test_reserved_and_device_figures_exceed_the_peak() -> None:
    layout = replace(EIGHT, framework="megatron", zero=1)
    memory_by_figure = {
        figure: predict_memory(LLAMA, replace(layout, memory_figure=figure), H200)
        for figure in ("peak", "reserved", "device")
    }
    parts = memory_by_figure["peak"].parts
    transient = memory_by_figure["peak"].total - parts["weights"] - parts["gradients"] - parts["optimizer"]
    assert memory_by_figure["peak"].reported == memory_by_figure["peak"].total
    assert memory_by_figure["reserved"].reported - memory_by_figure["peak"].reported == pytest.approx(
        (RESERVED_FACTOR - 1) * transient
    )
    assert memory_by_figure["device"].reported - memory_by_figure["reserved"].reported == pytest.approx(
        CUDA_CONTEXT_BYTES
    )


def test_gradients_exist_at_the_loss_only_if_accumulated_or_bucketed() -> None:
    layout = Layout(micro_batch=2, global_batch=2, recompute="selective")
    memory = predict_memory(LLAMA, layout, H200)
    summed = predict_memory(LLAMA, replace(layout, global_batch=8), H200)
    assert summed.total - memory.total == pytest.approx(memory.parts["gradients"])
    spread = predict_memory(LLAMA, replace(layout, dp=2, global_batch=4), H200)
    assert spread.total == pytest.approx(sum(spread.parts.values()))


def test_buckets_are_a_second_copy_of_gradients_by_default() -> None:
    layout = Layout(dp=4, micro_batch=1, global_batch=4)
    ours, theirs = (
        predict_memory(LLAMA, replace(layout, trainer=name), H200).parts["gradients"] for name in ("", "unknown")
    )
    assert theirs == 2 * ours


def test_deepspeed_pipeline_keeps_sent_activations_and_bf16_gradients() -> None:
    model = replace(LLAMA, vocab=1024)
    layout = Layout(dp=2, pp=4, micro_batch=1, global_batch=16, zero=1, recompute="full", framework="megatron")
    plain, theirs = (
        predict_memory(model, replace(layout, trainer=name), H200).parts for name in ("", "megatron-deepspeed")
    )
    sent = 2 * model.seq * model.hidden
    assert theirs["activations"] - plain["activations"] == pytest.approx(layout.pp * sent)
    assert theirs["gradients"] == pytest.approx(1.5 * plain["gradients"])


def test_nanotron_stores_fewer_activations_than_torch() -> None:
    layout = Layout(tp=4, micro_batch=1, global_batch=1, sequence_parallel=True)
    ours = predict_memory(LLAMA, layout, H200).parts["activations"]
    theirs = predict_memory(LLAMA, replace(layout, framework="megatron", trainer="nanotron"), H200).parts["activations"]
    assert theirs < ours


@pytest.mark.parametrize(("params", "tied"), [("3.21", True), ("3.61", False), ("", False), ("9", False)])
def test_tied_embedding_follows_from_the_parameter_count(params: str, tied: bool) -> None:
    sizes = {"layers": "28", "hidden": "3072", "heads": "24", "kv_heads": "8", "ffn": "8192", "vocab": "128256"}
    row = sizes | {"gated_mlp": "1", "seq": "4096", "params_b": params}
    assert model_from_row(RowCells(row)).tied is tied


def test_megatron_deepspeed_has_no_sequence_parallel_by_default() -> None:
    row = ROW | {"tp": "4", "software": "Megatron-DeepSpeed", "dtype": "bf16", "gpus": "8"}
    assert not parse_run_row(row).layout.sequence_parallel
    assert parse_run_row(row | {"software": "Megatron-LM"}).layout.sequence_parallel
