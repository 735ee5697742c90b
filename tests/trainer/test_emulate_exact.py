"""Ranks that take turns in one process leave the bits of a real run with gloo: every loss, every weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from simulator.emulate.reduce import ALGORITHMS
from simulator.emulate.run import Emulation
from tests.trainer.launch import SMALL_LLAMA, finished, forked, losses
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
    "statistics of a batch norm": (2, ["tiny-resnet", "batch.size=8"]),
    "3 ranks, sgd": (3, ["tiny-mlp", "batch.size=12", "optimizer.name=sgd", "optimizer.lr=0.1"]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_bit_of_a_real_run(case: str, tmp_path: Path) -> None:
    ranks, words = CASES[case]
    words = [*words, *COMMON]
    with forked(ranks, words, tmp_path) as run:
        finished(run)

    emulation = Emulation(load(words[0], words[1:]), ranks, per_node=ranks)
    found = [emulation.step().loss for _ in range(STEPS)]

    assert found == list(losses(tmp_path / "run").values())
    assert len(set(found)) == STEPS
    tensors = emulation.training.tensors()
    real = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    saved = Checkpoints(tmp_path / "run" / "checkpoints")
    newest = saved.newest()
    assert newest is not None
    saved.load(newest, real)
    assert [name for name, tensor in tensors.items() if not torch.equal(tensor, real[name])] == []


def test_ranks_that_add_in_another_order_end_with_other_bits() -> None:
    ranks, words = CASES["3 ranks, sgd"]
    ends = []
    for algorithm in ALGORITHMS:
        emulation = Emulation(load(words[0], [*words[1:], *COMMON]), ranks, per_node=1, algorithm=algorithm)
        for _ in range(STEPS):
            emulation.step()
        ends.append(b"".join(value.numpy().tobytes() for value in emulation.training.optimizer.tensors().values()))
    assert len(set(ends)) > 1
