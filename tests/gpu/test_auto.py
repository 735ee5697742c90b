"""`auto` on a GPU with little free memory: it chooses settings that fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.gpu.gpu_ranks import train
from tests.gpu.requirements import GIB
from tests.gpu.short_run import DEVICE
from tests.trainer.launch import assert_finished, events, lines
from trainer.config.load import load

MODEL = [
    "tiny-llama", "model.dim=1024", "model.layers=16", "model.heads=16", "model.kv_heads=4", "model.ffn=4096",
    "model.seq_len=2048", "model.vocab_size=32000", "data.samples=256", "batch.size=32", "precision=bf16",
    "steps=4", "metrics.every=1", "checkpoint.every=0", "run.device=cuda", "run.folder=run",
]  # fmt: skip
CHOSEN = re.compile(r"^(?P<name>.+), micro-batch (?P<micro>\d+): (?P<gib>[\d.]+) GiB \(.* fits$")
# The estimate is an upper bound, but one far above the measured peak would waste the GPU.
MAX_PEAK_RATIO, MIN_PEAK_RATIO = 1.1, 0.6


@pytest.mark.parametrize(("free", "recompute"), [(16.0, ["none"]), (8.0, ["selective", "full"])])
def test_the_choice_fits_into_the_free_memory(free: float, recompute: list[str], tmp_path: Path) -> None:
    with leave_free(free), train(MODEL, tmp_path) as run:
        assert_finished(run)
    folder = tmp_path / "run"
    why = [event["why"] for event in events(folder, "chosen")]
    choice = next(match for match in map(CHOSEN.match, why) if match)
    resolved = load(str(folder / "config.yaml"), [])
    assert resolved.parallel.strategy == "single"
    assert resolved.parallel.recompute in recompute
    assert resolved.batch.micro == int(choice["micro"])
    estimated = float(choice["gib"]) * GIB
    peak = max(line["memory_gb"] for line in lines(folder / "metrics" / "rank-00000.jsonl")) * 1e9
    print(f"\n{free:g} GiB free: {why[-1]}; measured {peak / GIB:.2f} GiB, {peak / estimated:.2f} of it")
    assert MIN_PEAK_RATIO * estimated < peak < MAX_PEAK_RATIO * estimated, f"{peak / GIB:.2f} GiB; {why}"


def test_settings_that_do_not_fit_are_reported_before_the_first_step(tmp_path: Path) -> None:
    with leave_free(3.0), train(MODEL, tmp_path) as run:
        assert run.wait() == 2, run.output
    assert "nothing fits" in run.output
    assert not (tmp_path / "run" / "metrics").exists()


@contextmanager
def leave_free(free_gib: float) -> Iterator[None]:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(DEVICE)[0]
    ballast = torch.empty(int(free - free_gib * GIB), dtype=torch.uint8, device=DEVICE)
    try:
        yield
    finally:
        del ballast
        torch.cuda.empty_cache()
