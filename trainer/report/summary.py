"""The figures of a run that come first: how it ended, how fast it was, where the time went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from trainer.report.lives import lives
from trainer.report.run_folder import Line, Run

PARTS = ("compute", "communication", "data", "checkpoint", "other")


def summarise(run: Run) -> dict[str, Any]:
    """Plain data; None where the run did not measure something. Medians over the second half: the first warms up."""
    lines = run.lines
    steady = lines[len(lines) // 2 :]
    losses = [line["loss"] for line in lines if math.isfinite(line.get("loss", math.nan))]
    all_lives = lives(run)
    joined = run.of("joined")
    step_s = middle(steady, "step_s")
    ended, recorded = end(run), max((line["step"] for line in lines), default=0)
    return {
        "name": run.name,
        "outcome": ended["outcome"],
        "reason": ended.get("reason", ""),
        "step": ended.get("step", recorded),
        "recorded_step": recorded,
        "steps": run.config.get("steps"),
        "ranks": joined[-1].get("world_size") if joined else len(run.ranks),
        "hosts": joined[-1].get("hosts", []) if joined else [],
        "strategy": (run.of("built") or [{}])[-1].get("strategy"),
        "wall_s": _wall(run),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "best_loss": min(losses, default=None),
        "unit": run.unit,
        "per_s": middle(steady, f"{run.unit}_per_s"),
        "mfu": middle(steady, "mfu"),
        "peak": (run.of("peak") or [{}])[-1],
        "step_s": step_s,
        "split": {part: _share(steady, part, step_s) for part in PARTS},
        "communication_from": steady[-1].get("communication_from") if steady else None,
        "memory_gb": max(
            (v["memory_gb"] for rank in run.ranks.values() for v in rank if "memory_gb" in v), default=None
        ),
        "gpu_utilisation": middle(steady, "gpu_utilisation"),
        "skipped": len([line for line in lines if line.get("skipped")]),
        "starts": len(all_lives),
        "recovery_s": [round(life.down + life.start_up, 3) for life in all_lives[1:]],
        "saves": len(run.of("save_published")),
        "failed_saves": len(run.of("save_failed")),
        "rank_step_s": {rank: middle(values[len(values) // 2 :], "own_s") for rank, values in run.ranks.items()},
    }


def end(run: Run) -> dict[str, Any]:
    """How the last life ended: outcome, and where known reason and step. A record of an earlier one says nothing."""
    started = run.of("started")
    since = started[-1]["time"] if started else -math.inf
    for record in (run.outcome, *run.of("ended")[-1:]):
        if record and record.get("time", math.inf) >= since:
            return {"outcome": "unknown", **record}
    return {"outcome": "no end recorded"}


def middle(lines: Sequence[Line], key: str) -> float | None:
    values = [line[key] for line in lines if key in line]
    return median(values) if values else None


def _share(lines: Sequence[Line], part: str, step_s: float | None) -> float | None:
    seconds = middle(lines, f"{part}_s")
    return seconds / step_s if seconds is not None and step_s else None


def _wall(run: Run) -> float:
    times = [event["time"] for event in run.events] + [line["time"] for line in run.lines if "time" in line]
    began = [event["began"] for event in run.of("started") if "began" in event]
    return max(times, default=0.0) - min(times + began, default=0.0)
