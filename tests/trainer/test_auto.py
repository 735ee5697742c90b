"""Strategy and micro-batch are chosen by memory: the least that fits, and equal on every rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from tests.trainer.round_sizes import SIZES
from trainer.auto import measure
from trainer.auto.choose import GIB, choose, choose_without_measuring
from trainer.auto.sizes import (
    bound_sizes,
)
from trainer.auto_settings import ResolvedSettings, resolve_auto
from trainer.config.check import check
from trainer.config.errors import ConfigError
from trainer.config.load import dump, load
from trainer.data.registry import open_source
from trainer.world import World

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


def test_residuals_make_the_chosen_micro_batch_smaller() -> None:
    arguments = ["batch.size=64", "parallel.strategy=ddp"]
    whole, compressed = (
        choose(load("tiny-llama", [*arguments, *more]), SIZES, 20 * GIB, world_size=8, local_size=4)
        for more in ([], ["communication.compression=topk"])
    )
    assert compressed.micro < whole.micro
    assert "residuals 8.00" in compressed.why[-1]


def test_a_pipeline_chooses_by_the_micro_batches_of_a_step() -> None:
    """Without recomputation, gpipe stores the activations of the whole batch, whatever the micro-batch is."""
    settings = ["batch.size=64", "parallel.strategy=single", "parallel.pipeline=4", "batch.micro=1"]
    config = load("tiny-llama", [*settings, "parallel.schedule=gpipe"])
    choice = choose(config, SIZES, 12 * GIB, world_size=4, local_size=4)
    assert choice.parallel.recompute == "none"
    assert choice.need.activations > 64 * SIZES.activations / 4
    assert choose(config, SIZES, 7 * GIB, world_size=4, local_size=4).parallel.recompute == "selective"


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


@pytest.mark.parametrize("setting", ["communication.compression=topk", "communication.inner_steps=4"])
def test_a_choice_is_made_again_if_communication_takes_other_memory(setting: str, tmp_path: Path) -> None:
    def resolve(*settings: str) -> ResolvedSettings:
        config = load("tiny-llama", ["parallel.strategy=ddp", *settings])
        return resolve_auto(config, world, open_source(config), tmp_path)

    world = World(0, 1, 0, 1, "here", torch.device("cpu"), (), None)
    resolve().save(tmp_path)
    assert all(line.startswith("as before: ") for line in resolve().reasons)
    assert not any(line.startswith("as before: ") for line in resolve(setting).reasons)


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


def test_sizes_are_measured_only_if_memory_is_scarce() -> None:
    config = load("tiny-llama", [])
    bound = bound_sizes(config)
    assert bound is not None
    choice = choose_without_measuring(config, bound, 8 * GIB, 4, 2)
    assert choice is not None
    assert (choice.parallel.strategy, choice.micro) == ("ddp", 2)
    assert choose_without_measuring(config, bound, GIB // 1000, 4, 2) is None
    assert bound_sizes(load("tiny-resnet", [])) is None
