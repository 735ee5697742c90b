"""Measured sizes are those of the real model, and bounds are above them."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trainer.auto import measure
from trainer.auto.memory import MemoryNeed, estimate_memory
from trainer.auto.sizes import (
    ModelSizes,
    bound_sizes,
    count_copied_keys_values,
    count_keys_values,
)
from trainer.config.layout import Layout, resolve_layout
from trainer.config.load import load
from trainer.config.schema import ParallelConfig
from trainer.data.registry import open_source
from trainer.models.init import fill
from trainer.models.lora import is_adapter
from trainer.models.registry import build_model, build_network


def test_keys_and_values_are_those_of_whole_sequences() -> None:
    config = load("tiny-llama", ["data.seq_len=32", "precision=bf16"])
    assert count_keys_values(config) == 2 * 32 * 2 * 16 * 2
    # Four query heads share two of keys and values.
    separate = load("tiny-llama", ["data.seq_len=32", "precision=bf16", "data.documents=separate"])
    assert count_copied_keys_values(separate) == count_keys_values(separate)
    assert count_keys_values(load("tiny-gpt2", [])) == 2 * 64 * 64 * 4
    assert count_keys_values(load("tiny-resnet", [])) == 0


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


@pytest.mark.nightly_cases("resnet-bf16")
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
    need = estimate_memory(sizes, config.parallel, resolve_layout(config.parallel, ranks, ranks), "fp32", 1, 2)
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
    # What is subtracted has a lower bound.
    assert bound.block_last_product == 0
    for field in dataclasses.fields(ModelSizes):
        if field.name != "block_last_product":
            assert getattr(bound, field.name) >= getattr(sizes, field.name), field.name
