"""Run the trainer on tiny models, to measure the overhead of a step and of a layer beyond their separate parts."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from simulator.calibrate.ranks import QUANTILES
from trainer.config.load import load
from trainer.loop.session import Session
from trainer.world import World

STEPS = 160
SAMPLES_PER_RANK = 1
MODEL = {"dim": 32, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab_size": 64, "seq_len": 16}
LAYERS = {"short_run": 1, "deep_run": 5}
"""Layers by the run's name in the profile: the first shows the overhead of a step, the difference that of a layer."""


def run_trainer(folder: Path, layers: int, world: World, precision: str) -> None:
    """Run the trainer on the ranks of `world`, which must be closed: the run creates its own process group."""
    ranks, device = world.size, world.device.type
    settings = [
        f"precision={precision}",
        *(f"model.{name}={value}" for name, value in {"layers": layers, **MODEL}.items()),
        *(
            f"steps={STEPS}",
            f"batch.size={SAMPLES_PER_RANK * ranks}",
            f"batch.micro={SAMPLES_PER_RANK}",
            f"run.folder={folder}",
        ),
        *("parallel.strategy=" + ("ddp" if ranks > 1 else "single"), f"run.device={device}", "checkpoint.every=0"),
        *("metrics.every=1", "metrics.profile_every=0", "metrics.tensorboard=false", "metrics.peak_tflops=1"),
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = Session(load("tiny-llama", settings), time.time()).run()
    if status:
        raise RuntimeError(f"the short run of {layers} layers ended with {status}:\n{output.getvalue()}")


def read_times(folder: Path, layers: int) -> dict[str, Any]:
    """Return model and step times of a run, from the faster fifth of its steps; called on one rank."""
    lines = [json.loads(line) for line in (folder / "metrics" / "rank-00000.jsonl").read_text().splitlines()]
    steady = lines[STEPS // 3 :]
    times = {
        name: quantiles([line[name] for line in steady], n=QUANTILES)[0] for name in ("step_s", "data_s", "other_s")
    }
    return {"model": {"layers": layers, **MODEL}, "samples": SAMPLES_PER_RANK, "steps": len(steady), **times}
