"""The trainer itself on small models: what a step, and a layer in it, costs beside the work that is measured alone."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from trainer.config.load import load
from trainer.loop import Run

STEPS = 160
SMALLEST = {"dim": 32, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab_size": 64, "seq_len": 16}
WIDE = {"layers": 3, "dim": 96, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab_size": 512, "seq_len": 64}
RUNS = {"short_run": {"layers": 1, **SMALLEST}, "deep_run": {"layers": 5, **SMALLEST}}
"""Models by the name of their run in the profile: what a step costs, and what a layer of it does."""
CPU_RUNS = {**RUNS, "wide_run": WIDE}
"""There, work in training finds caches full of other work: by how much longer that takes."""
SAMPLES = {"short_run": 1, "deep_run": 1, "wide_run": 4}
"""Of one rank in a step."""


def of_device(device: str) -> dict[str, dict[str, int]]:
    return CPU_RUNS if device == "cpu" else RUNS


def short_run(name: str, folder: Path, ranks: int, device: str) -> None:
    """Joins a world of its own: call it after the last measurement, on every rank."""
    samples = SAMPLES[name]
    words = [
        *(f"model.{key}={value}" for key, value in CPU_RUNS[name].items()),
        *(f"steps={STEPS}", f"batch.size={samples * ranks}", f"batch.micro={samples}", f"run.folder={folder}"),
        *("parallel.strategy=" + ("ddp" if ranks > 1 else "single"), f"run.device={device}", "checkpoint.every=0"),
        *("metrics.every=1", "metrics.profile_every=0", "metrics.tensorboard=false", "metrics.peak_tflops=1"),
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = Run(load("tiny-llama", words), time.time()).go()
    if status:
        raise RuntimeError(f"the short run ended with {status}:\n{said.getvalue()}")


def what_it_took(name: str, folder: Path) -> dict[str, Any]:
    """For one rank to ask: the folder is gone as soon as it knows."""
    lines = [json.loads(line) for line in (folder / "metrics" / "rank-00000.jsonl").read_text().splitlines()]
    steady = lines[STEPS // 3 :]
    times = {key: quantiles([line[key] for line in steady], n=20)[0] for key in ("step_s", "data_s", "other_s")}
    return {"model": CPU_RUNS[name], "samples": SAMPLES[name], "steps": len(steady), **times}
