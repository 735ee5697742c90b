"""Every line of metrics contains plausible values of a busy GPU: the driver's readings, memory and utilisation."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.gpu.gpu_ranks import train
from tests.gpu.short_run import DEVICE
from tests.trainer.launch import assert_finished, events, lines
from trainer.config.load import load
from trainer.models.shape import shape_of

BUSY = [
    "tiny-llama", "model.dim=1024", "model.ffn=4096", "model.heads=16", "model.kv_heads=16", "model.layers=8",
    "model.seq_len=1024", "model.vocab_size=8192", "data.samples=256", "batch.size=16", "batch.micro=16",
    "precision=bf16", "steps=80", "schedule.warmup=0", "metrics.every=10", "checkpoint.every=0",
    "run.device=cuda", "run.folder=run",
]  # fmt: skip


def test_a_busy_gpu_looks_busy(tmp_path: Path) -> None:
    with train(BUSY, tmp_path) as run:
        assert_finished(run)
    folder = tmp_path / "run"
    records = lines(folder / "metrics" / "rank-00000.jsonl")
    assert [line["step"] for line in records] == list(range(10, 81, 10))
    total = torch.cuda.get_device_properties(DEVICE).total_memory / 1e9
    weights = 16 * shape_of(load("tiny-llama", BUSY[1:]).model).params / 1e9
    for line in records:
        assert 0 <= line["gpu_utilisation"] <= 1
        assert 20 < line["gpu_power_w"] < 2000
        assert 100 < line["gpu_clock_mhz"] < 4000
        assert 5 < line["gpu_temperature_c"] < 110
        assert weights < line["memory_gb"] < total
        assert 0 < line["mfu"] < 1
        parts = ("data_s", "compute_s", "communication_s", "checkpoint_s", "other_s")
        assert sum(line.get(part, 0.0) for part in parts) <= line["step_s"] * 1.01
    assert max(line["gpu_utilisation"] for line in records) > 0.3
    (peak,) = events(folder, "peak")
    assert 1e12 < peak["achieved"] < 1.05 * peak["peak"]
