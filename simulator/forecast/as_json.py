"""A forecast as JSON, with all figures unrounded."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from simulator.forecast.forecast import Forecast
from simulator.forecast.whole_run import WholeRun
from simulator.search.summary_text import describe_bottleneck
from trainer.config.load import to_dict

SCHEMA = 1


def as_json(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast as the content of `predict --json`."""
    step, machines, problem = forecast.prediction, forecast.machines, forecast.problem
    expected, least, most = forecast.units_per_s
    return {
        "schema": SCHEMA,
        "name": forecast.config.name,
        "machines": {
            "name": machines.sheet.name,
            "nodes": machines.nodes,
            "ranks": machines.ranks,
            "stack": machines.stack or None,
            "profile": str(machines.profile.path) if machines.profile else None,
        },
        "layout": asdict(forecast.resolved.layout),
        "chosen": forecast.resolved.chosen,
        "step_s": {"expected": step.step_s, "low": step.low_s, "high": step.high_s},
        "parts_s": step.parts,
        "bottleneck": describe_bottleneck(step, 3),
        "unit": forecast.unit,
        "units_per_s": {"expected": expected, "low": least, "high": most},
        "mfu": forecast.mfu,
        "peak_tflops": forecast.peak_tflops,
        "memory": {
            "fits": forecast.fits,
            "gib": forecast.taken_gib,
            "room_gib": forecast.room_gib,
            "parts_gib": forecast.memory_gib,
            "problem": str(problem) if problem else None,
        },
        "run": _run(forecast.run),
        "config": to_dict(forecast.config),
    }


def _run(run: WholeRun) -> dict[str, Any]:
    out, paid = run.outlook, run.cost
    ends = math.isfinite(out.wall_s)
    return {
        "steps": run.steps,
        "wall_s": {"expected": out.wall_s, "low": out.low_s, "high": _finite(out.high_s)} if ends else None,
        "goodput": out.goodput if ends else 0.0,
        "interruptions": out.interruptions if ends else None,
        "checkpoint_gb": run.checkpoint_gb,
        "best_checkpoint_every": run.best_every,
        "usd": {"expected": paid.usd, "low": paid.low, "high": _finite(paid.high)} if paid else None,
        "usd_of": paid.of if paid else None,
        "priced_on": str(paid.priced_on) if paid else None,
        "kwh": run.kwh,
    }


def _finite(value: float) -> float | None:
    """Return None for infinity, which JSON cannot express."""
    return value if math.isfinite(value) else None
