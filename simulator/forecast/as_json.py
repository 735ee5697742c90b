"""A forecast for programs: the same figures, whole."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from simulator.forecast.forecast import Forecast
from simulator.forecast.whole_run import WholeRun
from simulator.search.words import bottleneck
from trainer.config.load import to_dict

SCHEMA = 1


def as_json(found: Forecast) -> dict[str, Any]:
    step, on, problem = found.prediction, found.on, found.problem
    expected, least, most = found.units_per_s
    return {
        "schema": SCHEMA,
        "name": found.config.name,
        "machines": {
            "name": on.sheet.name,
            "nodes": on.nodes,
            "ranks": on.ranks,
            "stack": on.stack or None,
            "profile": str(on.profile.path) if on.profile else None,
        },
        "layout": asdict(found.settled.layout),
        "chosen": found.settled.chosen,
        "step_s": {"expected": step.step_s, "low": step.low_s, "high": step.high_s},
        "parts_s": step.parts,
        "bottleneck": bottleneck(step, 3),
        "unit": found.unit,
        "units_per_s": {"expected": expected, "low": least, "high": most},
        "mfu": found.mfu,
        "peak_tflops": found.peak_tflops,
        "memory": {
            "fits": found.fits,
            "gib": found.taken_gib,
            "room_gib": found.room_gib,
            "parts_gib": found.memory_gib,
            "problem": str(problem) if problem else None,
        },
        "run": _run(found.run),
        "config": to_dict(found.config),
    }


def _run(run: WholeRun) -> dict[str, Any]:
    out, paid = run.outlook, run.money
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
    """JSON has no word for never."""
    return value if math.isfinite(value) else None
