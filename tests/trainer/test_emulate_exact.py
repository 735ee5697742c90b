"""Ranks emulated in one process give the same losses and weights as a real run with gloo, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from simulator.emulate.all_reduce import ALGORITHMS, all_reduce, rounds_of
from simulator.emulate.fold import create_fold
from simulator.emulate.run import Emulation
from tests.trainer.launch import SMALL_LLAMA, assert_finished, forked, losses
from tests.trainer.ranks import on_ranks
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.load import load

STEPS = 4
COMMON = [f"steps={STEPS}", "checkpoint.every=0", "run.folder=run", "parallel.strategy=ddp", *SMALL_LLAMA[5:]]
LLAMA = list(SMALL_LLAMA[:5])
GPT2 = ["tiny-gpt2", "model.layers=2", "model.dim=32", "model.seq_len=16"]
CASES = {
    "2 ranks, dropout, accumulated, buckets apart from gradients": (
        2,
        [*GPT2, "batch.size=8", "batch.micro=1", "model.dropout=0.1", "parallel.bucket_view=false"],
    ),
    "3 ranks, clipped, several buckets": (
        3,
        [*LLAMA, "batch.size=6", "optimizer.clip_norm=0.05", "parallel.bucket_mb=1", "model.vocab_size=20000"],
    ),
    "4 ranks, static graph, fp16": (
        4,
        [*LLAMA, "batch.size=8", "parallel.static_graph=true", "precision=fp16"],
    ),
    "8 ranks, accumulated": (8, [*LLAMA, "batch.size=16", "batch.micro=1"]),
    "2 ranks, sgd, statistics of a batch norm": (2, ["tiny-resnet", "batch.size=8"]),
}


# By day, other cases have accumulated micro-batches, and four ranks.
NIGHTLY = {"8 ranks, accumulated"}


@pytest.mark.nightly_cases("3 ranks, clipped, several buckets")
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in CASES]
)
def test_the_emulation_matches_every_bit_of_a_real_run(case: str, tmp_path: Path) -> None:
    ranks, arguments = CASES[case]
    arguments = [*arguments, *COMMON]
    with forked(ranks, arguments, tmp_path) as run:
        assert_finished(run)

    emulation = Emulation(load(arguments[0], arguments[1:]), ranks, per_node=ranks)
    emulated = [emulation.step().loss for _ in range(STEPS)]

    assert emulated == list(losses(tmp_path / "run").values())
    assert len(set(emulated)) == STEPS
    tensors = emulation.training.tensors()
    real = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    saved = Checkpoints(tmp_path / "run" / "checkpoints")
    newest = saved.newest()
    assert newest is not None
    saved.load(newest, real)
    assert [name for name, tensor in tensors.items() if not torch.equal(tensor, real[name])] == []


def test_another_order_of_additions_changes_the_bits() -> None:
    config = load("tiny-mlp", ["batch.size=16", "parallel.strategy=ddp"])
    ends = []
    for algorithm in ALGORITHMS:
        emulation = Emulation(config, 8, per_node=4, algorithm=algorithm)
        for _ in range(STEPS):
            emulation.step()
        ends.append(b"".join(value.numpy().tobytes() for value in emulation.training.optimizer.tensors().values()))
    assert len(set(ends)) == len(ALGORITHMS)


def test_every_emulated_rank_calls_the_hook_between_micro_batches() -> None:
    calls = []
    emulation = Emulation(load("tiny-mlp", ["batch.size=8", "batch.micro=2", "parallel.strategy=ddp"]), 2, per_node=2)
    emulation.training.engine.before_micro_batch = lambda index, count: calls.append((index, count))
    emulation.step()
    assert calls == [(1, 2)] * 2


def sum_with_gloo(elements: int) -> bytes:
    """Return, on a rank, the bytes of gloo's sum."""
    tensor = make_numbers(dist.get_rank(), elements)
    dist.all_reduce(tensor)
    return tensor.numpy().tobytes()


def make_numbers(rank: int, elements: int) -> torch.Tensor:
    """Return numbers whose magnitudes differ so much that every order of additions gives other bits."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(elements, generator=generator) * 10 ** torch.randint(-3, 4, (elements,), generator=generator)


# The last size has segments of more than 1 MiB, which gloo splits again.
@pytest.mark.parametrize("elements", [1, 7, 1000, 2_500_001])
def test_sums_are_computed_in_the_order_of_gloo(elements: int) -> None:
    ranks = 4
    arrays = [make_numbers(rank, elements) for rank in range(ranks)]
    fold = create_fold("ring", ranks, ranks, torch.clone)
    for rank in reversed(range(ranks)):
        fold.add(rank, arrays[rank])
    all_reduce(arrays, rounds_of("ring", ranks, ranks, elements, 4), torch.clone)
    real = on_ranks(f"{__name__}:sum_with_gloo", ranks=ranks, elements=elements)
    assert real == [array.numpy().tobytes() for array in arrays]
    assert fold.total().numpy().tobytes() == real[0]
