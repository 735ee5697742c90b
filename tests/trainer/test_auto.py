"""Strategy and micro-batch are chosen by memory: the least that fits, equal on every rank, from accurate sizes."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from trainer.auto import measure
from trainer.auto.choose import GIB, choose, choose_without_measuring
from trainer.auto.memory import MemoryNeed, estimate_memory
from trainer.auto.sizes import (
    ModelSizes,
    bound_sizes,
    count_copied_keys_values,
    count_keys_values,
    count_outputs_at_once,
)
from trainer.auto_settings import ResolvedSettings, resolve_auto
from trainer.config.check import check
from trainer.config.communication import CommunicationConfig
from trainer.config.errors import ConfigError
from trainer.config.layout import Layout, resolve_layout
from trainer.config.load import dump, load
from trainer.config.models import LlamaConfig
from trainer.config.schema import ParallelConfig
from trainer.data.registry import open_source
from trainer.models.init import fill
from trainer.models.lora import is_adapter
from trainer.models.registry import build_model, build_network
from trainer.world import World

# 2 GiB of weights, 8 GiB with gradients and Adam's states; 0.5 GiB of activations per sample.
SIZES = ModelSizes(
    parameters=GIB // 2,
    trainable=GIB // 2,
    largest_block=GIB // 40,
    states=4 * GIB,
    update=0,
    blocks=16,
    activations=GIB // 2,
    block_input=GIB // 400,
    block_products=GIB // 100,
    outputs=GIB // 100,
)
# Free GiB of a rank, overrides -> strategy, zero, shard, recompute, micro-batch; 8 ranks, 4 on each node
TABLE = [
    (100, [], ("ddp", 3, 0, "none", 8)),
    (12, [], ("ddp", 3, 0, "none", 4)),
    (10, [], ("ddp", 3, 0, "none", 1)),
    # Activations do not fit but products do: recomputation costs less than sharding.
    (9.3, [], ("ddp", 3, 0, "selective", 1)),
    (9.1, [], ("ddp", 3, 0, "full", 2)),
    (9.1, ["parallel.engine=muster"], ("ddp", 3, 0, "full", 2)),
    (5, [], ("fsdp", 2, 0, "none", 2)),
    (5, ["parallel.engine=muster"], ("fsdp", 2, 0, "none", 2)),
    # ZeRO 2 gathers all weights; sharding them within a node is enough.
    (3.4, [], ("hsdp", 3, 4, "none", 1)),
    (1.9, [], ("fsdp", 3, 0, "selective", 1)),
    (100, ["parallel.offload=true"], ("fsdp", 2, 0, "none", 8)),
    (3.4, ["parallel.shard=2"], ("fsdp", 3, 0, "none", 2)),
    (12, ["batch.micro=8"], ("ddp", 3, 0, "selective", 8)),
    (100, ["parallel.recompute=full"], ("ddp", 3, 0, "full", 8)),
    (12, ["parallel.strategy=fsdp"], ("fsdp", 3, 0, "none", 8)),
]


def test_expert_parallelism_divides_only_the_experts() -> None:
    """Half of the weights are experts; under fsdp, ranks store as much as before but gather fewer experts."""
    sizes = replace(SIZES, experts=GIB // 4)
    for strategy, layout in (("ddp", Layout(replicate=8)), ("fsdp", Layout(shard=8))):
        parallel = ParallelConfig(strategy=strategy, expert=4)
        whole, spread = (
            estimate_memory(sizes, parallel, replace(layout, expert=expert), "fp32", 1) for expert in (1, 4)
        )
        if strategy == "ddp":
            assert spread.weights == spread.gradients == whole.weights * 5 // 8
            assert spread.states == whole.states * 5 // 8
        else:
            assert (spread.weights, spread.states) == (whole.weights, whole.states)
            assert spread.gathered < whole.gathered
        assert spread.activations == whole.activations


def test_frozen_experts_have_no_gradients() -> None:
    sizes = replace(SIZES, experts=GIB // 4, trainable=SIZES.parameters // 64)
    whole, spread = (
        estimate_memory(sizes, ParallelConfig(strategy="ddp"), Layout(replicate=8, expert=expert), "fp32", 1)
        for expert in (1, 4)
    )
    assert spread.gradients == whole.gradients * 5 // 8


@pytest.mark.parametrize(("free", "overrides", "expected"), TABLE)
def test_the_least_sharding_that_fits_is_chosen(free: float, overrides: list[str], expected: tuple[Any, ...]) -> None:
    config = load("tiny-llama", ["batch.size=64", *overrides])
    choice = choose(config, SIZES, int(free * GIB), world_size=8, local_size=4)
    chosen = choice.parallel
    assert (chosen.strategy, chosen.zero, chosen.shard, chosen.recompute, choice.micro) == expected
    assert choice.need.total <= free * 0.9 * GIB
    assert choice.why[0] == f"{free:.1f} GiB free on the fullest rank, 10% of it reserved"
    assert choice.why[-1].endswith(" fits")
    assert all(line.endswith(" does not fit") for line in choice.why[1:-1])
    # The choice is stored with the checkpoints and must be valid when it is read again.
    assert check(replace(config, parallel=chosen, batch=replace(config.batch, micro=choice.micro))) == []


@pytest.mark.parametrize(
    ("communication", "size"),
    [
        # The residual and the moving average, and the new values of both until the step ends.
        (CommunicationConfig(compression="topk"), 16),
        (CommunicationConfig(compression="topk", smoothing=0.0), 8),
        (CommunicationConfig(compression="randomk"), 8),
        (CommunicationConfig(compression="powersgd"), 8),
    ],
    ids=["topk", "topk, not smoothed", "randomk", "powersgd"],
)
def test_what_compression_stores_takes_these_bytes_per_trained_parameter(
    communication: CommunicationConfig, size: int
) -> None:
    frozen = replace(SIZES, trainable=SIZES.parameters // 4)

    def estimate(parallel: ParallelConfig, layout: Layout, communication: CommunicationConfig) -> MemoryNeed:
        return estimate_memory(frozen, parallel, layout, "bf16", 1, communication=communication)

    ddp, hsdp = ParallelConfig(strategy="ddp"), ParallelConfig(strategy="hsdp", shard=4)
    cases = [
        (ddp, Layout(replicate=8), size * frozen.trainable),
        (ddp, Layout(context=8), size * frozen.trainable),
        (hsdp, Layout(replicate=2, shard=4), size // 4 * frozen.trainable),
        # There is no other copy of the model, so nothing is compressed.
        (ddp, Layout(), 0),
    ]
    for parallel, layout, expected in cases:
        int8 = CommunicationConfig(compression="int8")
        with_residual, without = (estimate(parallel, layout, settings) for settings in (communication, int8))
        assert (with_residual.residuals, without.residuals) == (expected, 0)
        assert with_residual.total - without.total == expected


def test_residuals_make_the_chosen_micro_batch_smaller() -> None:
    arguments = ["batch.size=64", "parallel.strategy=ddp"]
    whole, compressed = (
        choose(load("tiny-llama", [*arguments, *more]), SIZES, 20 * GIB, world_size=8, local_size=4)
        for more in ([], ["communication.compression=topk"])
    )
    assert compressed.micro < whole.micro
    assert "residuals 8.00" in compressed.why[-1]


def test_pipeline_stages_hold_whole_weights_and_gradients_for_a_step() -> None:
    """Only optimizer state and fp32 weights are sharded, as with ZeRO 2 for weights and ZeRO 1 for gradients."""

    def estimate(**changes: Any) -> MemoryNeed:
        parallel = replace(load("tiny-llama", []).parallel, strategy="fsdp", **changes)
        return estimate_memory(SIZES, parallel, resolve_layout(parallel, 8, 8), "bf16", 1)

    alone, staged = estimate(zero=3), estimate(zero=3, pipeline=2)
    own = SIZES.parameters // 2
    assert staged.gathered >= 2 * own > alone.gathered
    assert staged.gradients == 4 * own > alone.gradients
    assert staged.weights == alone.weights
    assert estimate(zero=3, pipeline=2, offload=True).gradients == 4 * own
    assert estimate(zero=3, offload=True).gradients == 0


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "in_flight"),
    [("gpipe", 16, 16), ("1f1b", 16, 4), ("1f1b", 2, 2), ("interleaved", 16, 4 + 3 / 2), ("interleaved", 4, 4)],
)
def test_the_first_pipeline_stage_stores_activations_of_several_micro_batches(
    schedule: Any, micro_batches: int, in_flight: float
) -> None:
    def estimate(sizes: ModelSizes, count: int, **changes: Any) -> int:
        parallel = ParallelConfig(strategy="single", pipeline=4, schedule=schedule, **changes)
        return estimate_memory(sizes, parallel, Layout(pipeline=4), "fp32", 2, count).activations

    sizes = replace(SIZES, outputs=0)
    assert estimate(sizes, micro_batches) == 2 * in_flight * sizes.activations / 4
    # Only one block at a time holds its activations again.
    stored, block = sizes.blocks * sizes.block_input // 4, sizes.activations // sizes.blocks
    assert estimate(sizes, micro_batches, recompute="full") == int(2 * (in_flight * stored + block))
    assert estimate(replace(sizes, masked_pairs=100), micro_batches, recompute="full") == int(
        2 * (in_flight * (stored + 100) + block + 400)
    )


def test_a_pipeline_chooses_by_the_micro_batches_of_a_step() -> None:
    """Without recomputation, gpipe stores the activations of the whole batch, whatever the micro-batch is."""
    settings = ["batch.size=64", "parallel.strategy=single", "parallel.pipeline=4", "batch.micro=1"]
    config = load("tiny-llama", [*settings, "parallel.schedule=gpipe"])
    choice = choose(config, SIZES, 12 * GIB, world_size=4, local_size=4)
    assert choice.parallel.recompute == "none"
    assert choice.need.activations > 64 * SIZES.activations / 4
    assert choose(config, SIZES, 7 * GIB, world_size=4, local_size=4).parallel.recompute == "selective"


def test_context_ranks_share_activations_and_gather_keys_and_values() -> None:
    sizes = replace(SIZES, keys_values=GIB // 100)
    parallel = ParallelConfig(strategy="fsdp", context=4)
    whole, part = (
        estimate_memory(sizes, parallel, layout, "fp32", 1) for layout in (Layout(shard=8), Layout(shard=2, context=4))
    )
    assert part.weights == whole.weights
    assert part.states == whole.states
    assert part.activations == whole.activations // 4 + 16 * (GIB // 100)
    recomputed = replace(parallel, recompute="full")
    whole, part = (
        estimate_memory(sizes, recomputed, layout, "fp32", 1)
        for layout in (Layout(shard=8), Layout(shard=2, context=4))
    )
    assert part.activations == pytest.approx(whole.activations / 4 + GIB // 100, rel=1e-6)


def test_keys_and_values_are_those_of_whole_sequences() -> None:
    config = load("tiny-llama", ["data.seq_len=32", "precision=bf16"])
    assert count_keys_values(config) == 2 * 32 * 2 * 16 * 2
    # Four query heads share two of keys and values.
    separate = load("tiny-llama", ["data.seq_len=32", "precision=bf16", "data.documents=separate"])
    assert count_copied_keys_values(separate) == count_keys_values(separate)
    assert count_keys_values(load("tiny-gpt2", [])) == 2 * 64 * 64 * 4
    assert count_keys_values(load("tiny-resnet", [])) == 0


def test_a_loss_in_chunks_needs_memory_for_one_chunk_of_logits() -> None:
    def estimate(sizes: ModelSizes, micro: int, tensor: int = 1) -> int:
        parallel = replace(ParallelConfig(), strategy="single", tensor=tensor)
        return estimate_memory(sizes, parallel, resolve_layout(parallel, tensor, tensor), "fp32", micro).activations

    sizes = replace(SIZES, activations=0, outputs=GIB)
    chunked = replace(sizes, outputs_at_once=GIB)
    assert [estimate(sizes, micro) for micro in (1, 4)] == [2 * GIB, 8 * GIB]
    assert [estimate(chunked, micro) for micro in (1, 4)] == [2 * GIB, 2 * GIB]
    # Each tensor-parallel rank has a quarter of the vocabulary.
    assert estimate(chunked, 4, tensor=4) == 2 * GIB // 4
    # The gradient of the head exists before those of the layers.
    assert estimate(replace(chunked, head=GIB), 4) == (2 + 4) * GIB
    config = load("tiny-llama", ["loss.chunk_tokens=10"])
    assert isinstance(config.model, LlamaConfig)
    assert count_outputs_at_once(config) == 4 * 10 * config.model.vocab_size
    tokens = {"inputs": torch.zeros(2, 16, dtype=torch.int64)}
    measured = measure.measure_sizes(config, tokens, "cpu")
    assert measured.outputs_at_once == count_outputs_at_once(config)
    assert measured.head == config.model.dim * config.model.vocab_size
    # LoRA freezes the head, also if it changes it.
    frozen, on_head = (
        measure.measure_sizes(
            load("tiny-llama", ["lora.rank=2", f"lora.layers=[{layers}]", "checkpoint.initial=unused"]), tokens, "cpu"
        )
        for layers in ("attention.*", "head")
    )
    assert (frozen.outputs_at_once > 0, frozen.head) == (True, 0)
    assert (on_head.outputs_at_once, on_head.head) == (frozen.outputs_at_once, 0)


def test_a_single_rank_gets_the_single_strategy() -> None:
    assert choose(load("tiny-llama", []), SIZES, 100 * GIB, 1, 1).parallel.strategy == "single"


def test_the_error_lists_the_sizes_if_nothing_fits() -> None:
    with pytest.raises(ConfigError) as raised:
        choose(load("tiny-llama", ["batch.size=64"]), SIZES, GIB, world_size=8, local_size=4)
    (problem,) = raised.value.problems
    assert problem.where == "parallel.strategy"
    assert problem.message.startswith("nothing fits into 0.9 GiB per rank on 8 ranks: ddp: 8.52 GiB (weights 2.00, ")
    assert "fsdp zero 3 recompute full: " in problem.message
    fix = "use more ranks, a shorter data.seq_len, a smaller model, or set parallel.tensor or parallel.context"
    assert problem.fix == fix


def test_ranks_with_different_memory_make_the_same_choice_and_keep_it_after_a_restart(tmp_path: Path) -> None:
    answers = on_ranks("tests.trainer.test_auto:resolve_on_rank", folder=str(tmp_path), scarce=2_900_000)
    assert len(set(answers)) == 1
    assert "0.0 GiB free on the fullest rank" in answers[0]
    assert "strategy: fsdp" in answers[0]
    again = on_ranks("tests.trainer.test_auto:resolve_on_rank", folder=str(tmp_path), scarce=1)
    assert len(set(again)) == 1
    assert "as before: " in again[0]
    assert "strategy: fsdp" in again[0]


@pytest.mark.parametrize(
    ("setting", "is_kept"),
    [
        ("optimizer.name=muon", False),
        ("optimizer.moments=bf16", False),
        ("data.seq_len=16", False),
        ("data.documents=separate", False),
        ("loss.chunk_tokens=8", False),
        ("lora.rank=2", False),
        ("optimizer.lr=0.5", True),
        ("optimizer.momentum=0.5", True),
    ],
)
def test_a_choice_is_kept_unless_a_setting_that_it_depends_on_changes(
    setting: str, is_kept: bool, tmp_path: Path
) -> None:
    def resolve(*settings: str) -> ResolvedSettings:
        config = load("tiny-llama", ["checkpoint.initial=unused", *settings])
        return resolve_auto(config, world, open_source(config), tmp_path)

    world = World(0, 1, 0, 1, "here", torch.device("cpu"), (), None)
    resolve().save(tmp_path)
    assert all(line.startswith("as before: ") for line in resolve().reasons)
    assert all(line.startswith("as before: ") is is_kept for line in resolve(setting).reasons)


def resolve_on_rank(folder: str, scarce: int) -> str:
    """Give rank 2 the least memory; only rank 2 knows how much."""
    rank = dist.get_rank()
    world = World(rank, 4, rank, 4, "here", torch.device("cpu"), (), dist.group.WORLD)
    config = load("tiny-llama", [])
    with patch.object(measure, "count_free_bytes", lambda _: scarce if rank == 2 else (rank + 1) * GIB):
        resolved = resolve_auto(config, world, open_source(config), Path(folder))
    if rank == 0:
        resolved.save(Path(folder))
    return "\n".join([dump(resolved.config), str(resolved.micro), *resolved.reasons])


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (["data.documents=separate", "model.heads=8", "model.kv_heads=2"], 3),
        (["data.documents=packed", "model.heads=8", "model.kv_heads=4", "data.kind=tokens", "data.path=shards"], 1),
        (["data.documents=separate", "model.heads=8", "model.kv_heads=8"], 0),
        (["data.documents=joined", "model.heads=8", "model.kv_heads=2"], 0),
    ],
)
def test_copies_of_shared_keys_are_counted_without_a_mask(settings: list[str], copies: int) -> None:
    """On a GPU, flex_attention needs no mask, but stores a copy of keys and values for each query head."""
    sizes = bound_sizes(load("tiny-llama", ["precision=bf16", *settings]))
    assert sizes is not None
    assert sizes.copied_keys_values == copies * sizes.keys_values
    by_flex = replace(sizes, masked_pairs=0, update=0)

    def estimate(measured: ModelSizes, layout: Layout, **changes: Any) -> int:
        return estimate_memory(measured, ParallelConfig(strategy="ddp", **changes), layout, "bf16", 2).activations

    without = replace(by_flex, copied_keys_values=0)
    more = 2 * copies * sizes.keys_values
    assert estimate(by_flex, Layout()) - estimate(without, Layout()) == sizes.blocks * more
    assert estimate(by_flex, Layout(), recompute="full") - estimate(without, Layout(), recompute="full") == more
    tensor = Layout(tensor=2)
    assert estimate(by_flex, tensor, tensor=2) - estimate(without, tensor, tensor=2) == sizes.blocks * more // 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("preset", ["tiny-gpt2", "tiny-llama"])
def test_what_documents_need_is_counted_for_each_block(preset: str, precision: Any) -> None:
    config = load(preset, ["data.documents=separate", f"precision={precision}"])
    arrays = open_source(config).fetch(np.arange(8), 0)
    sizes = measure.measure_sizes(config, {"inputs": torch.as_tensor(arrays["inputs"][:2])}, "cpu")
    assert sizes.masked_pairs == arrays["inputs"].shape[1] ** 2
    alone = ParallelConfig(strategy="single")
    masked, plain = (
        estimate_memory(replace(measured, update=0), alone, Layout(), precision, 1).activations
        for measured in (sizes, replace(sizes, masked_pairs=0, document_angles=0, copied_keys_values=0))
    )
    stored, stored_plain = (
        stored_for_backward(config, arrays["inputs"][:4], documents)
        for documents in (torch.as_tensor(arrays["documents"][:4]), None)
    )
    # The mask itself has a byte for each pair and is not stored for the backward pass.
    assert masked - plain == pytest.approx((stored - stored_plain) / 4 + sizes.masked_pairs, rel=0.1)
    # Ranks that split sequences have the rows of their own tokens, and all keys and values.
    divided = replace(alone, context=4)
    part, part_plain = (
        estimate_memory(replace(measured, update=0), divided, Layout(context=4), precision, 1)
        for measured in (sizes, replace(sizes, masked_pairs=0, document_angles=0, copied_keys_values=0))
    )
    repeated = sizes.blocks * sizes.copied_keys_values
    assert part.activations - part_plain.activations == (masked - plain - repeated) // 4 + repeated
    assert measure.measure_sizes(load(preset, []), {"inputs": torch.zeros(2, 64).long()}, "cpu").masked_pairs == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "arguments",
    [["tiny-llama"], ["tiny-gpt2"], ["tiny-gpt2", "model.dropout=0.1"], ["tiny-resnet"], ["tiny-mlp"]],
    ids=["llama", "gpt2", "dropout", "resnet", "mlp"],
)
def test_measured_sizes_match_the_real_model(arguments: list[str], precision: str) -> None:
    config = load(arguments[0], [*arguments[1:], f"precision={precision}"])
    samples = open_source(config).fetch(np.arange(8), 0)["inputs"]
    sizes = measure.measure_sizes(config, {"inputs": torch.as_tensor(samples[:2])}, "cpu")
    assert sizes.parameters == sum(p.numel() for p in build_model(config.model).parameters())
    # Measure the growth from four samples to eight: weights cast to two bytes are stored once for any batch.
    each = (stored_for_backward(config, samples) - stored_for_backward(config, samples[:4])) / 4
    assert sizes.activations == pytest.approx(each, rel=0.1)


def stored_for_backward(config: Any, inputs: Any, documents: torch.Tensor | None = None) -> int:
    """Return the bytes that a forward pass of the real model stores for the backward pass, without weights."""
    model = build_model(config.model)
    model.init_buffers(torch.device("cpu"))
    fill([model], seed=1)
    stored: dict[int, torch.Tensor] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def store(tensor: torch.Tensor) -> torch.Tensor:
        stored.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    cast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor), cast:
        model(torch.as_tensor(inputs), **({} if documents is None else {"documents": documents}))
    return sum(tensor.untyped_storage().nbytes() for address, tensor in stored.items() if address not in weights)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp"])
def test_frozen_weights_need_neither_gradients_nor_state(strategy: str) -> None:
    config = load("tiny-llama", ["lora.rank=2", "checkpoint.initial=unused", f"parallel.strategy={strategy}"])
    samples = open_source(config).fetch(np.arange(2), 0)["inputs"]
    sizes = measure.measure_sizes(config, {"inputs": torch.as_tensor(samples)}, "cpu")
    with torch.device("meta"):
        parameters = dict(build_network(config).named_parameters())
    adapters = sum(value.numel() for name, value in parameters.items() if is_adapter(name))
    assert (sizes.parameters, sizes.trainable) == (sum(value.numel() for value in parameters.values()), adapters)
    ranks = 1 if strategy == "single" else 4
    shards = 4 if strategy == "fsdp" else 1
    need = estimate_memory(sizes, config.parallel, resolve_layout(config.parallel, ranks, ranks), "fp32", 1)
    assert (need.gradients, need.states) == (4 * adapters // shards, 8 * adapters // shards)
    # Only the network knows how many layers are changed.
    assert bound_sizes(config) is None


def test_smaller_moments_need_less_memory() -> None:
    def estimate(*settings: str) -> MemoryNeed:
        config = load("tiny-llama", ["parallel.strategy=fsdp", *settings])
        samples = open_source(config).fetch(np.arange(2), 0)["inputs"]
        sizes = measure.measure_sizes(config, {"inputs": torch.as_tensor(samples)}, "cpu")
        bound = bound_sizes(config)
        assert bound is None or bound.states >= sizes.states
        assert bound is None or bound.update >= sizes.update
        return estimate_memory(sizes, config.parallel, resolve_layout(config.parallel, 4, 4), "fp32", 1)

    exact, rounded, small = (estimate(f"optimizer.moments={kind}") for kind in ("fp32", "bf16", "int8"))
    assert exact.states == 2 * exact.weights == 2 * rounded.states
    assert small.states < 0.6 * rounded.states
    muon = estimate("optimizer.name=muon")
    assert exact.states / 2 < muon.states < exact.states
    # The update of a tiny model needs more than its activations.
    assert estimate("optimizer.moments=bf16", "data.seq_len=1").activations > estimate("data.seq_len=1").activations


@pytest.mark.parametrize("preset", ["tiny-mlp", "tiny-gpt2", "tiny-llama", "demo"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bound_is_above_the_measured_sizes(preset: str, precision: str) -> None:
    config = load(preset, [f"precision={precision}", "data.kind=synthetic"])
    samples = open_source(config).fetch(np.arange(2), 0)["inputs"]
    sizes, bound = measure.measure_sizes(config, {"inputs": torch.as_tensor(samples)}, "cpu"), bound_sizes(config)
    assert bound is not None
    for field in dataclasses.fields(ModelSizes):
        assert getattr(bound, field.name) >= getattr(sizes, field.name), field.name


def test_sizes_are_measured_only_if_memory_is_scarce() -> None:
    config = load("tiny-llama", [])
    bound = bound_sizes(config)
    assert bound is not None
    choice = choose_without_measuring(config, bound, 8 * GIB, 4, 2)
    assert choice is not None
    assert (choice.parallel.strategy, choice.micro) == ("ddp", 2)
    assert choose_without_measuring(config, bound, GIB // 1000, 4, 2) is None
    assert bound_sizes(load("tiny-resnet", [])) is None
