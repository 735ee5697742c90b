"""Write run folders in the trainer's format without training, from real settings and given step times."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from trainer.config.load import dump, load

BEGAN = 1_790_000_000.0
STEPS = 60


def run(
    folder: Path,
    settings: list[str],
    times_ms: dict[str, float | None],
    *,
    ranks: int = 1,
    hosts: int = 1,
    preset: str = "tiny-llama",
    mfu: float | None = 0.3,
    peak: dict[str, Any] | None = None,
    steps: int = STEPS,
    finished: bool = True,
    noise: float = 0.01,
    cpu: str = "",
) -> Path:
    """Write a run folder and return it.

    `times_ms` maps each part of a step to milliseconds, or to None if it was not measured. Older trainers did not
    record `cpu`.
    """
    config = load(preset, [f"steps={STEPS}", *settings])
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(config))
    for rank in range(ranks):
        rows = [_line(step, rank, times_ms, mfu, noise) for step in range(1, steps + 1)]
        _write(folder / "metrics" / f"rank-{rank:05d}.jsonl", rows)
    processor = {"device": "cpu", "cpu": cpu} if cpu else {}
    micro = config.batch.micro if config.batch.micro != "auto" else config.batch.size // ranks
    events: list[dict[str, Any]] = [
        {"time": BEGAN, "event": "started", "began": BEGAN - 3},
        {
            "time": BEGAN,
            "event": "joined",
            "world_size": ranks,
            "hosts": [f"node-{n}" for n in range(hosts)],
            **processor,
        },
        {"time": BEGAN, "event": "built", "strategy": config.parallel.strategy, "micro": micro},
        {"time": BEGAN + 1, "event": "peak", **(peak or {"peak": 1e12, "source": "given", "achieved": 50e9})},
    ]
    if finished:
        events.append({"time": BEGAN + 900, "event": "ended", "outcome": "finished", "reason": "done", "step": steps})
    _write(folder / "events.jsonl", events)
    return folder


def _line(step: int, rank: int, times_ms: dict[str, float | None], mfu: float | None, noise: float) -> dict[str, Any]:
    """Return the metrics of a step: the first step and a late one are slow, the others have a little noise."""
    times = 1 + noise * (Random(step).random() - 0.5)
    times *= 20 if step == 1 else 5 if noise and step == STEPS - 7 else 1
    parts = {f"{name}_s": None if ms is None else times * ms / 1e3 for name, ms in times_ms.items()}
    total = sum(seconds for seconds in parts.values() if seconds)
    own = total - (parts.get("communication_s") or 0.0)
    return {"step": step, "time": BEGAN + 10 + step, "step_s": total, **parts, "own_s": own, "mfu": mfu, "rank": rank}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
