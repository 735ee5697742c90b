"""Runs with what was measured of them, as far as they can be compared with a prediction."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from simulator.parameters import count_parameters
from simulator.rows.run import ParsedRun, parse_run_row
from simulator.rows.values import RowError

DATA = Path(__file__).parents[1] / "data" / "runs.csv"
NEW_DATA = DATA.with_name("new_runs.csv")
"""Collected after the model stood, and asked before anything was fitted to them (docs/simulator.md)."""
BELIEVED = 0.9
"""No run computes more than this share of the data sheet's peak: the row contradicts itself."""


@dataclass(frozen=True)
class MeasuredRun:
    source: str
    run_id: str
    row: Mapping[str, str]
    run: ParsedRun
    step_s: float
    """0 where only memory is known."""
    memory_gib: float
    """0 where it is not known."""


def load_measured_runs(*paths: Path) -> list[MeasuredRun]:
    """Of these tables; of all that came with the simulator where none is named."""
    found = []
    for path in paths or (DATA, NEW_DATA):
        with path.open(newline="") as file:
            found += select_measured_runs(csv.DictReader(file))
    return found


def select_measured_runs(rows: Iterable[Mapping[str, str]]) -> list[MeasuredRun]:
    """Impossible rows, runs that failed and rows that their own source doubts are left out."""
    found = []
    for row in rows:
        if row.get("quality", "ok") not in ("ok", "") or row.get("fits") == "0":
            continue
        try:
            described = parse_run_row(row)
        except RowError:
            continue
        step = _step_s(row, described)
        if not _believable(described, step):
            step = 0.0
        memory = _figure(row, "memory_gb")
        found.append(MeasuredRun(row.get("source") or "", row.get("run_id") or "", row, described, step, memory))
    return found


def _step_s(row: Mapping[str, str], described: ParsedRun) -> float:
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


def _believable(described: ParsedRun, step: float) -> bool:
    if step <= 0:
        return False
    model, layout = described.model, described.layout
    held = count_parameters(model)
    used = held.total - held.embedding * (not model.tied)
    if model.experts is not None:
        used -= held.mixtures * held.expert * (model.experts.count - model.experts.per_token)
    rate = 6 * used * layout.global_batch * model.seq / step / layout.gpus
    return rate < BELIEVED * described.system.gpu.peak_tflops.get(layout.dtype, 1e9) * 1e12
