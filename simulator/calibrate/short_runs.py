"""The trainer itself on the smallest models: what a step, and a layer in it, costs beside the work measured alone."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

from simulator.calibrate.ranks import QUICK
from trainer.config.load import load
from trainer.loop.session import Session
from trainer.world import World

STEPS = 160
SAMPLES = 1
"""Of one rank in a step."""
MODEL = {"dim": 32, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab_size": 64, "seq_len": 16}
LAYERS = {"short_run": 1, "deep_run": 5}
"""By the name of the run in the profile: one shows what a step costs, the difference what a layer in it does."""


def short_run(folder: Path, layers: int, world: World, precision: str) -> None:
    """By the ranks of `world`, which is closed: a run joins one of its own. `precision`: as layers were measured in."""
    ranks, device = world.size, world.device.type
    words = [
        f"precision={precision}",
        *(f"model.{name}={value}" for name, value in {"layers": layers, **MODEL}.items()),
        *(f"steps={STEPS}", f"batch.size={SAMPLES * ranks}", f"batch.micro={SAMPLES}", f"run.folder={folder}"),
        *("parallel.strategy=" + ("ddp" if ranks > 1 else "single"), f"run.device={device}", "checkpoint.every=0"),
        *("metrics.every=1", "metrics.profile_every=0", "metrics.tensorboard=false", "metrics.peak_tflops=1"),
    ]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = Session(load("tiny-llama", words), time.time()).run()
    if status:
        raise RuntimeError(f"the short run of {layers} layers ended with {status}:\n{said.getvalue()}")


def what_it_took(folder: Path, layers: int) -> dict[str, Any]:
    """By the quicker fifth of steps. For one rank to ask."""
    lines = [json.loads(line) for line in (folder / "metrics" / "rank-00000.jsonl").read_text().splitlines()]
    steady = lines[STEPS // 3 :]
    times = {name: quantiles([line[name] for line in steady], n=QUICK)[0] for name in ("step_s", "data_s", "other_s")}
    return {"model": {"layers": layers, **MODEL}, "samples": SAMPLES, "steps": len(steady), **times}
