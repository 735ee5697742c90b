"""After its first steps, the real loop never waits for the GPU to finish the current step, not even to save."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.gpu.watched_run import FILE
from tests.trainer.launch import Launched, assert_finished, torchrun

FIRST, LAST, STEPS = 6, 16, 20
# Step 8 is saved while the run is watched.
COMMON = [
    f"steps={STEPS}", "schedule.warmup=0", "metrics.every=2", "metrics.profile_every=0", "checkpoint.every=8",
    "run.device=cuda", "run.folder=run",
]  # fmt: skip
LLAMA = ["tiny-llama", "model.dim=256", "model.ffn=512", "model.seq_len=256", "batch.size=8", "batch.micro=4"]
MIXTURE = ["tiny-moe", "model.dim=256", "model.seq_len=256", "batch.size=8", "batch.micro=4"]
CASES = {
    "single": [*LLAMA, "parallel.strategy=single", "precision=bf16"],
    "single, compiled whole": [*LLAMA, "parallel.strategy=single", "precision=bf16", "compile.mode=whole"],
    "single, fp16": [*LLAMA, "parallel.strategy=single", "precision=fp16"],
    "single, documents": [*LLAMA, "parallel.strategy=single", "precision=bf16", "data.documents=separate"],
    "fsdp": [*LLAMA, "parallel.strategy=fsdp", "precision=bf16"],
    "fsdp, fp16": [*LLAMA, "parallel.strategy=fsdp", "parallel.zero=2", "precision=fp16"],
    "mixture of experts": [*MIXTURE, "parallel.strategy=single", "precision=bf16"],
    "mixture of experts, fsdp": [*MIXTURE, "parallel.strategy=fsdp", "precision=bf16", "model.balance=bias"],
    "resnet": ["tiny-resnet", "parallel.strategy=single", "precision=bf16", "batch.micro=8"],
}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaCtxSynchronize", "cudaMemcpy")


@pytest.mark.parametrize("arguments", CASES.values(), ids=CASES)
def test_nothing_waits_inside_a_step(arguments: list[str], tmp_path: Path) -> None:
    with watched(arguments, tmp_path) as run:
        assert_finished(run)
    calls = json.loads((tmp_path / "run" / FILE).read_text())
    assert sum(count for name, count in calls.items() if "Launch" in name) > LAST - FIRST, calls
    print(f"\n{calls}")
    assert {name: count for name, count in calls.items() if name in WAITS} == {}
    assert not [name for name in calls if "Pageable" in name]


def test_a_wait_inside_a_step_is_detected(tmp_path: Path) -> None:
    with watched(CASES["single"], tmp_path, WAIT="1") as run:
        assert run.wait() != 0
    assert "called a synchronizing CUDA operation" in run.output


def watched(arguments: list[str], folder: Path, **more: str) -> AbstractContextManager[Launched]:
    variables = {"WATCH": f"{FIRST}:{LAST}", **more}
    return torchrun(1, [*arguments, *COMMON], folder, program="tests.gpu.watched_run", **variables)
