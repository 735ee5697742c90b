"""Select measured runs that can be compared with a prediction."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

from simulator.parameters import count_parameters
from simulator.rows.cells import RowError
from simulator.rows.run import ParsedRun, parse_run_row

DATA = Path(__file__).parents[1] / "data" / "runs.csv"
NEW_DATA = DATA.with_name("new_runs.csv")
"""Collected after the model was built, and predicted before it was fitted to them (docs/simulator-validation.md)."""
MAX_PEAK_SHARE = 0.9
"""A row that implies more than this share of the data sheet's peak contradicts itself."""


@dataclass(frozen=True)
class MeasuredRun:
    """A published run with its measurements."""

    source: str
    run_id: str
    row: Mapping[str, str]
    run: ParsedRun
    step_s: float
    """Measured seconds of a step; 0 if the row has none."""
    memory_gib: float
    """Measured memory in GiB; 0 if the row has none."""


def load_measured_runs(*paths: Path) -> list[MeasuredRun]:
    """Load the measured runs of these tables, or of all committed ones."""
    runs: list[MeasuredRun] = []
    for path in paths or (DATA, NEW_DATA):
        with path.open(newline="") as file:
            runs += select_measured_runs(csv.DictReader(file))
    return runs


def select_measured_runs(rows: Iterable[Mapping[str, str]]) -> list[MeasuredRun]:
    """Return the valid rows; runs that failed and rows that their own source doubts are left out."""
    runs = []
    for row in rows:
        if row.get("quality", "ok") not in ("ok", "") or row.get("fits") == "0":
            continue
        try:
            parsed = parse_run_row(row)
        except RowError:
            continue
        step = _step_s(row, parsed)
        if not _is_plausible(parsed, step):
            step = 0.0
        memory = _positive_number(row, "memory_gb")
        runs.append(MeasuredRun(row.get("source") or "", row.get("run_id") or "", row, parsed, step, memory))
    return runs


def _step_s(row: Mapping[str, str], parsed: ParsedRun) -> float:
    if row.get("global_batch") and (step := _positive_number(row, "step_time_s")):
        return step
    if rate := _positive_number(row, "tokens_per_s_per_gpu"):
        return parsed.layout.global_batch * parsed.model.seq / (rate * parsed.layout.gpus)
    return 0.0


def _positive_number(row: Mapping[str, str], name: str) -> float:
    """Return a positive number, or 0 if the cell is empty or invalid."""
    try:
        value = float(row.get(name) or 0)
    except ValueError:
        return 0.0
    return value if 0 < value < inf else 0.0


def _is_plausible(parsed: ParsedRun, step: float) -> bool:
    if step <= 0:
        return False
    model, layout = parsed.model, parsed.layout
    held = count_parameters(model)
    active = held.total - held.embedding * (not model.tied)
    if model.experts is not None:
        active -= held.mixtures * held.expert * (model.experts.count - model.experts.per_token)
    rate = 6 * active * layout.global_batch * model.seq / step / layout.gpus
    return rate < MAX_PEAK_SHARE * parsed.system.gpu.peak_tflops.get(layout.dtype, 1e9) * 1e12
