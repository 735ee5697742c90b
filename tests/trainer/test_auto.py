"""Strategy and micro-batch by memory: the least that fits, alike on every rank, from sizes that are the real ones."""

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
from trainer import settle
from trainer.auto import measure, memory_left
from trainer.auto.bound import bound
from trainer.auto.choose import GIB, certain, choose
from trainer.auto.memory import Need, Sizes, need
from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.layout import resolve_layout
from trainer.config.load import dump, load
from trainer.data.registry import open_source
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.world import World

# 2 GiB of weights, so 8 with gradients and Adam's states; 0.5 GiB of activations for a sample.
SIZES = Sizes(
    parameters=GIB // 2,
    largest_block=GIB // 40,
    states=2,
    blocks=16,
    activations=GIB // 2,
    block_input=GIB // 400,
    block_products=GIB // 100,
    outputs=GIB // 100,
)
# free GiB of a rank, settings -> strategy, zero, shard, recompute, micro-batch; 8 ranks, 4 on each node
TABLE = [
    (100, [], ("ddp", 3, 0, "none", 8)),
    (12, [], ("ddp", 3, 0, "none", 4)),
    (10, [], ("ddp", 3, 0, "none", 1)),
    # Activations do not fit, products do: computing again costs less than sharding.
    (9.3, [], ("ddp", 3, 0, "selective", 1)),
    (9.1, [], ("ddp", 3, 0, "full", 2)),
    (5, [], ("fsdp", 2, 0, "none", 2)),
    # Zero 2 gathers all weights; sharing them inside a node is enough.
    (3.4, [], ("hsdp", 3, 4, "none", 1)),
    (1.9, [], ("fsdp", 3, 0, "selective", 1)),
    (100, ["parallel.offload=true"], ("fsdp", 2, 0, "none", 8)),
    (3.4, ["parallel.shard=2"], ("fsdp", 3, 0, "none", 2)),
    (12, ["batch.micro=8"], ("ddp", 3, 0, "selective", 8)),
    (100, ["parallel.recompute=full"], ("ddp", 3, 0, "full", 8)),
    (12, ["parallel.strategy=fsdp"], ("fsdp", 3, 0, "none", 8)),
]


@pytest.mark.parametrize(("free", "words", "expected"), TABLE)
def test_the_least_that_fits(free: float, words: list[str], expected: tuple[Any, ...]) -> None:
    config = load("tiny-llama", ["batch.size=64", *words])
    choice = choose(config, SIZES, int(free * GIB), world_size=8, local_size=4)
    found = choice.parallel
    assert (found.strategy, found.zero, found.shard, found.recompute, choice.micro) == expected
    assert choice.need.total <= free * 0.9 * GIB
    assert choice.why[0] == f"{free:.1f} GiB free on the fullest rank, 10% of it left alone"
    assert choice.why[-1].endswith(" fits")
    assert all(line.endswith(" does not fit") for line in choice.why[1:-1])
    # It is stored with the checkpoints, and must be allowed when it is read again.
    assert check(replace(config, parallel=found, batch=replace(config.batch, micro=choice.micro))) == []


def test_stages_of_a_pipeline_hold_their_weights_and_gradients_whole_for_a_step() -> None:
    """As zero 2 holds weights and zero 1 gradients: only optimizer state and fp32 weights are in pieces."""

    def of(**changes: Any) -> Need:
        parallel = replace(load("tiny-llama", []).parallel, strategy="fsdp", **changes)
        return need(SIZES, parallel, resolve_layout(parallel, 8, 8), "bf16", 1)

    alone, staged = of(zero=3), of(zero=3, pipeline=2)
    own = SIZES.parameters // 2
    assert staged.gathered >= 2 * own > alone.gathered
    assert staged.gradients == 4 * own > alone.gradients
    assert staged.weights == alone.weights
    assert of(zero=3, pipeline=2, offload=True).gradients == 4 * own
    assert of(zero=3, offload=True).gradients == 0


def test_alone_there_is_nothing_to_share() -> None:
    assert choose(load("tiny-llama", []), SIZES, 100 * GIB, 1, 1).parallel.strategy == "single"


def test_where_nothing_fits_the_sizes_are_named() -> None:
    with pytest.raises(ConfigError) as raised:
        choose(load("tiny-llama", ["batch.size=64"]), SIZES, GIB, world_size=8, local_size=4)
    (problem,) = raised.value.problems
    assert problem.where == "parallel.strategy"
    assert problem.message.startswith("nothing fits 0.9 GiB per rank on 8 ranks: ddp: 8.52 GiB (weights 2.00, ")
    assert "fsdp zero 3 recompute full: " in problem.message
    assert problem.fix == "take more ranks, a shorter data.seq_len, a smaller model, or set parallel.tensor"


def test_ranks_with_different_memory_come_to_the_same_and_stay_with_it(tmp_path: Path) -> None:
    answers = on_ranks("tests.trainer.test_auto:settle_on_rank", folder=str(tmp_path), scarce=2_900_000)
    assert len(set(answers)) == 1
    assert "0.0 GiB free on the fullest rank" in answers[0]
    assert "strategy: fsdp" in answers[0]
    again = on_ranks("tests.trainer.test_auto:settle_on_rank", folder=str(tmp_path), scarce=1)
    assert len(set(again)) == 1
    assert "as before: " in again[0]
    assert "strategy: fsdp" in again[0]


def settle_on_rank(folder: str, scarce: int) -> str:
    """Rank 2 has the least; nobody but it knows how much."""
    rank = dist.get_rank()
    world = World(rank, 4, rank, 4, "here", torch.device("cpu"), (), dist.group.WORLD)
    config = load("tiny-llama", [])
    with patch.object(memory_left, "free_bytes", lambda _: scarce if rank == 2 else (rank + 1) * GIB):
        settled = settle.settle(config, world, open_source(config), Path(folder))
    if rank == 0:
        settled.keep(Path(folder))
    return "\n".join([dump(settled.config), str(settled.micro), *settled.why])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "words",
    [["tiny-llama"], ["tiny-gpt2"], ["tiny-gpt2", "model.dropout=0.1"], ["tiny-resnet"], ["tiny-mlp"]],
    ids=["llama", "gpt2", "dropout", "resnet", "mlp"],
)
def test_sizes_are_those_of_the_real_model(words: list[str], precision: str) -> None:
    config = load(words[0], [*words[1:], f"precision={precision}"])
    samples = open_source(config).fetch(np.arange(8), 0)["inputs"]
    found = measure.sizes(config, {"inputs": torch.as_tensor(samples[:2])}, "cpu")
    assert found.parameters == sum(p.numel() for p in build_model(config.model).parameters())
    # The growth from four samples to eight: weights cast to two bytes are kept once, however many samples there are.
    each = (kept_for_backward(config, samples) - kept_for_backward(config, samples[:4])) / 4
    assert found.activations == pytest.approx(each, rel=0.1)


def kept_for_backward(config: Any, inputs: Any) -> int:
    """Bytes that a forward pass of the real model leaves for backward, weights not counted."""
    model = build_model(config.model)
    model.init_buffers(torch.device("cpu"))
    fill([model], seed=1)
    kept: dict[int, torch.Tensor] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    cast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast:
        model(torch.as_tensor(inputs))
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)


@pytest.mark.parametrize("preset", ["tiny-mlp", "tiny-gpt2", "tiny-llama", "demo"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bound_is_above_what_is_measured(preset: str, precision: str) -> None:
    config = load(preset, [f"precision={precision}", "data.kind=synthetic"])
    samples = open_source(config).fetch(np.arange(2), 0)["inputs"]
    found, most = measure.sizes(config, {"inputs": torch.as_tensor(samples)}, "cpu"), bound(config)
    assert most is not None
    for field in dataclasses.fields(Sizes):
        assert getattr(most, field.name) >= getattr(found, field.name), field.name


def test_plenty_of_memory_needs_no_measuring_and_little_does() -> None:
    config = load("tiny-llama", [])
    most = bound(config)
    assert most is not None
    found = certain(config, most, 8 * GIB, 4, 2)
    assert found is not None
    assert (found.parallel.strategy, found.micro) == ("ddp", 2)
    assert certain(config, most, GIB // 1000, 4, 2) is None
    assert bound(load("tiny-resnet", [])) is None
