"""On the GPU, a killed and resumed run equals an uninterrupted one bit for bit, with run.deterministic=true."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.trainer.launch import (
    Launched,
    assert_finished,
    checkpoint_steps,
    digests,
    events,
    kill_when_held,
    losses,
    torchrun,
)

STEPS = 12
COMMON = [
    f"steps={STEPS}", "batch.size=8", "batch.micro=2", "schedule.warmup=0", "checkpoint.every=4", "metrics.every=1",
    "metrics.profile_every=0", "run.deterministic=true", "run.device=cuda", "run.folder=run",
]  # fmt: skip
DROPOUT = ["tiny-gpt2", "model.dropout=0.1", "precision=bf16"]
CASES = {
    "single": (1, [*DROPOUT, "parallel.strategy=single"]),
    "single, fp16": (1, ["tiny-llama", "parallel.strategy=single", "precision=fp16"]),
    "single, compiled whole": (1, ["tiny-llama", "parallel.strategy=single", "precision=bf16", "compile.mode=whole"]),
    # With one rank, ddp has nothing to average.
    "ddp, one rank": (1, [*DROPOUT, "parallel.strategy=ddp"]),
    "ddp": (2, [*DROPOUT, "parallel.strategy=ddp"]),
    "fsdp, one rank": (1, [*DROPOUT, "parallel.strategy=fsdp"]),
    "fsdp, one rank, offload": (1, ["tiny-llama", "parallel.strategy=fsdp", "parallel.offload=true"]),
    "fsdp, one rank, offload, muster": (
        1,
        ["tiny-llama", "parallel.strategy=fsdp", "parallel.offload=true", "parallel.engine=muster"],
    ),
    "fsdp": (2, ["tiny-llama", "parallel.strategy=fsdp", "precision=bf16"]),
}


@pytest.mark.parametrize("case", CASES)
def test_kill_and_resume_change_no_bit(case: str, tmp_path: Path) -> None:
    ranks, arguments = CASES[case]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with ranks_of(ranks, arguments, straight) as run:
        assert_finished(run)
    with ranks_of(ranks, arguments, killed, HOLD=f"{ranks - 1}:10") as run:
        resumed_from = kill_when_held(run, killed / "run")
    assert resumed_from in (4, 8)
    with ranks_of(ranks, arguments, killed) as run:
        assert_finished(run)
    assert [event["step"] for event in events(killed / "run", "loaded")] == [resumed_from]
    assert sorted(losses(straight / "run")) == list(range(1, STEPS + 1))
    assert losses(killed / "run") == losses(straight / "run")
    assert checkpoint_steps(killed / "run")[-1] == STEPS
    assert digests(killed / "run", STEPS) == digests(straight / "run", STEPS)


def ranks_of(ranks: int, arguments: list[str], folder: Path, **more: str) -> AbstractContextManager[Launched]:
    return torchrun(ranks, [*arguments, *COMMON], folder, program="tests.gpu.one_gpu_rank", **more)
