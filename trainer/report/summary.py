"""The key figures of a run: how it ended, how fast it was, and how the time was spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from trainer.report.attempts import list_attempts
from trainer.report.run_folder import Line, Run

PARTS = ("compute", "communication", "data", "checkpoint", "other")


def summarise(run: Run) -> dict[str, Any]:
    """Return the key figures as plain data, with None for figures that were not measured.

    Medians are over the second half of the run, because the first may include warm-up.
    """
    lines = run.lines
    steady = lines[len(lines) // 2 :]
    losses = [line["loss"] for line in lines if math.isfinite(line.get("loss", math.nan))]
    attempts = list_attempts(run)
    joined = run.events_of("joined")
    step_s = median_of(steady, "step_s")
    end, recorded = find_end(run), max((line["step"] for line in lines), default=0)
    return {
        "name": run.name,
        "outcome": end["outcome"],
        "reason": end.get("reason", ""),
        "failure": end.get("failure"),
        "failures": [{"time": first.time, "step": first.step, **first.summarise()} for first in run.failures],
        "step": end.get("step", recorded),
        "recorded_step": recorded,
        "steps": run.config.get("steps"),
        "ranks": joined[-1].get("world_size") if joined else len(run.ranks),
        "hosts": joined[-1].get("hosts", []) if joined else [],
        "strategy": (run.events_of("built") or [{}])[-1].get("strategy"),
        "wall_s": _measure_wall_time(run),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "best_loss": min(losses, default=None),
        "evaluation": _summarise_evaluations(run.evaluations),
        "unit": run.unit,
        "per_s": median_of(steady, f"{run.unit}_per_s"),
        "mfu": median_of(steady, "mfu"),
        "peak": (run.events_of("peak") or [{}])[-1],
        "step_s": step_s,
        "split": {part: _compute_share(steady, part, step_s) for part in PARTS},
        "communication_from": steady[-1].get("communication_from") if steady else None,
        "memory_gb": max(
            (v["memory_gb"] for rank in run.ranks.values() for v in rank if "memory_gb" in v), default=None
        ),
        "gpu_utilisation": median_of(steady, "gpu_utilisation"),
        "skipped": len([line for line in lines if line.get("skipped")]),
        "starts": len(attempts),
        "recovery_s": [round(attempt.down + attempt.start_up, 3) for attempt in attempts[1:]],
        "saves": len(run.events_of("save_published")),
        "failed_saves": len(run.events_of("save_failed")),
        "corruptions": [event["message"] for event in run.events_of("corruption") if event.get("decided")],
        "rank_step_s": {rank: median_of(values[len(values) // 2 :], "own_s") for rank, values in run.ranks.items()},
    }


def _summarise_evaluations(lines: Sequence[Line]) -> dict[str, Any]:
    """Return the last figures, and the lowest loss with its step; empty without an evaluation."""
    finite = [line for line in lines if math.isfinite(line.get("loss", math.nan))]
    if not finite:
        return {}
    best = min(finite, key=lambda line: line["loss"])
    names = ("step", "loss", "accuracy", "perplexity")
    last = {name: finite[-1][name] for name in names if name in finite[-1]}
    return {**last, "best_loss": best["loss"], "best_step": best["step"]}


def find_end(run: Run) -> dict[str, Any]:
    """Return how the last attempt ended: outcome and, if recorded, reason and step.

    Records of earlier attempts are ignored.
    """
    started = run.events_of("started")
    since = started[-1]["time"] if started else -math.inf
    for record in (run.outcome, *run.events_of("ended")[-1:]):
        if record and record.get("time", math.inf) >= since:
            return {"outcome": "unknown", **record}
    return {"outcome": "no end recorded"}


def median_of(lines: Sequence[Line], key: str) -> float | None:
    """Return the median of a metric over the lines that have it, or None."""
    values = [line[key] for line in lines if key in line]
    return median(values) if values else None


def _compute_share(lines: Sequence[Line], part: str, step_s: float | None) -> float | None:
    seconds = median_of(lines, f"{part}_s")
    return seconds / step_s if seconds is not None and step_s else None


def _measure_wall_time(run: Run) -> float:
    times = [event["time"] for event in run.events] + [line["time"] for line in run.lines if "time" in line]
    began = [event["began"] for event in run.events_of("started") if "began" in event]
    return max(times, default=0.0) - min(times + began, default=0.0)
