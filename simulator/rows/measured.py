"""Runs with what was measured of them, as far as they can be compared with a prediction."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from simulator.parameters import parameters
from simulator.rows.run import Run, run
from simulator.rows.values import RowError

DATA = Path(__file__).parents[1] / "data" / "runs.csv"
MORE = DATA.with_name("new_runs.csv")
"""Collected after the model stood, and asked before anything was fitted to them (docs/simulator.md)."""
BELIEVED = 0.9
"""No run computes more than this share of the data sheet's peak: the row contradicts itself."""


@dataclass(frozen=True)
class Measured:
    source: str
    run_id: str
    row: Mapping[str, str]
    run: Run
    step_s: float
    """0 where only memory is known."""
    memory_gib: float
    """0 where it is not known."""


def measured_runs(*paths: Path) -> list[Measured]:
    """Of these tables; of all that came with the simulator where none is named."""
    found = []
    for path in paths or (DATA, MORE):
        with path.open(newline="") as file:
            found += measured(csv.DictReader(file))
    return found


def measured(rows: Iterable[Mapping[str, str]]) -> list[Measured]:
    """Impossible rows, runs that failed and rows that their own source doubts are left out."""
    found = []
    for row in rows:
        if row.get("quality", "ok") not in ("ok", "") or row.get("fits") == "0":
            continue
        try:
            described = run(row)
        except RowError:
            continue
        step = _step_s(row, described)
        if not _believable(described, step):
            step = 0.0
        memory = _figure(row, "memory_gb")
        found.append(Measured(row.get("source") or "", row.get("run_id") or "", row, described, step, memory))
    return found


def _step_s(row: Mapping[str, str], described: Run) -> float:
    if row.get("global_batch") and (step := _figure(row, "step_time_s")):
        return step
    if rate := _figure(row, "tokens_per_s_per_gpu"):
        return described.layout.global_batch * described.model.seq / (rate * described.layout.gpus)
    return 0.0


def _figure(row: Mapping[str, str], name: str) -> float:
    """0 where there is none that could be one."""
    try:
        value = float(row.get(name) or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < inf else 0.0


def _believable(described: Run, step: float) -> bool:
    if step <= 0:
        return False
    model, layout = described.model, described.layout
    held = parameters(model)
    used = held.total - held.embedding * (not model.tied)
    if model.experts is not None:
        used -= held.mixtures * held.expert * (model.experts.count - model.experts.per_token)
    rate = 6 * used * layout.global_batch * model.seq / step / layout.gpus
    return rate < BELIEVED * described.system.gpu.peak_tflops.get(layout.dtype, 1e9) * 1e12
