"""Compare predicted runs with measured ones: errors by source, intervals, the order of layouts, cross-validation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, log, nan
from statistics import median

from simulator.fit.error_tables import TableRenderer, aligned_table
from simulator.fit.rates import fit_rates
from simulator.hardware.rates import Rates
from simulator.memory.peak import GIB
from simulator.rows.measured import MeasuredRun
from simulator.rows.run_table import predict_run

MIN_LAYOUTS = 4
"""Layouts that a group needs before their order means anything."""
TIE = 0.02
"""Measured rates closer than this (log ratio) have no order: a second run may swap them."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class RunComparison:
    """One measured run and its prediction."""

    run: MeasuredRun
    step_s: float
    """Predicted seconds of a step; `low_s` and `high_s` are its interval."""
    low_s: float
    high_s: float
    memory_gib: float
    """Predicted memory in GiB."""

    @property
    def error(self) -> float:
        return self.step_s / self.run.step_s - 1

    @property
    def covered(self) -> bool:
        return self.low_s <= self.run.step_s <= self.high_s


@dataclass(frozen=True)
class RunErrors:
    """Relative errors of the model on the runs of one source."""

    rows: int
    median: float
    p90: float
    bias: float
    """Median of log(predicted / measured): above 0 the model is slower than the measurement."""
    covered: float
    """Share of the rows inside their interval."""
    memory_rows: int
    memory_median: float


@dataclass(frozen=True)
class LayoutRanking:
    """How well the model orders the layouts of one model on the same GPUs."""

    name: str
    layouts: int
    tau: float
    """Kendall's rank correlation between predicted and measured order."""
    regret: float
    """Measured time of the layout predicted to be fastest, relative to the fastest measured one, minus 1."""


def compare_runs(runs: Iterable[MeasuredRun], rates: Rates | None = None) -> list[RunComparison]:
    """Predict each run, with the committed constants unless `rates` is given."""
    comparisons = []
    for run in runs:
        prediction, low, high = predict_run(run.run, rates)
        comparisons.append(RunComparison(run, prediction.step_s, low, high, prediction.memory.reported / GIB))
    return comparisons


def errors_by_source(rows: Sequence[RunComparison]) -> dict[str, RunErrors]:
    """Return the errors of each source, and of all sources under `all`."""
    by_source = _group(rows, lambda row: row.run.source)
    return {name: summarize_errors(own) for name, own in [*sorted(by_source.items()), ("all", list(rows))]}


def summarize_errors(rows: Sequence[RunComparison]) -> RunErrors:
    """Summarize the errors in step time and memory; NaN where no row has the measurement."""
    timed = [row for row in rows if row.run.step_s > 0]
    sizes = sorted(abs(row.error) for row in timed)
    memory_errors = [abs(row.memory_gib / row.run.memory_gib - 1) for row in rows if row.run.memory_gib > 0]
    return RunErrors(
        rows=len(timed),
        median=median(sizes) if sizes else nan,
        p90=sizes[ceil(0.9 * len(sizes)) - 1] if sizes else nan,
        bias=median(log(row.step_s / row.run.step_s) for row in timed) if timed else nan,
        covered=sum(row.covered for row in timed) / len(timed) if timed else nan,
        memory_rows=len(memory_errors),
        memory_median=median(memory_errors) if memory_errors else nan,
    )


def rank_layouts(rows: Sequence[RunComparison]) -> list[LayoutRanking]:
    """Rank the layouts of each group that has enough; repeated runs of a layout count once, by their median."""
    groups = _group([row for row in rows if row.run.step_s > 0], _comparable_runs)
    rankings = []
    for name, own in sorted(groups.items()):
        pairs = [
            (
                median(_seconds_per_sample(row, row.step_s) for row in same),
                median(_seconds_per_sample(row, row.run.step_s) for row in same),
            )
            for same in _group(own, lambda row: str(row.run.run.layout)).values()
        ]
        if len(pairs) >= MIN_LAYOUTS:
            rankings.append(_rank(name, pairs))
    return rankings


def predict_without_own_source(runs: Sequence[MeasuredRun], progress: Progress = lambda _: None) -> list[RunComparison]:
    """Predict every run with constants fitted without its source."""
    return _cross_validate(runs, lambda run: run.source, progress)


def predict_without_own_system(runs: Sequence[MeasuredRun], progress: Progress = lambda _: None) -> list[RunComparison]:
    """Predict every run with constants fitted without its system."""
    return _cross_validate(runs, lambda run: run.run.system.name, progress)


def list_timed_names(runs: Sequence[MeasuredRun], by: str) -> list[str]:
    """Return the sources or systems that have a measured step: those a fit can use."""
    timed = (run for run in runs if run.step_s > 0)
    return sorted({run.source if by == "source" else run.run.system.name for run in timed})


def run_error_table(errors: Mapping[str, RunErrors], render: TableRenderer = aligned_table) -> str:
    """Render one line per source."""
    heads = ("source", "rows", "median %", "p90 %", "bias %", "in interval %", "memory rows", "memory median %")
    return render(heads, [_cells(name, own) for name, own in errors.items()])


def ranking_table(rankings: Sequence[LayoutRanking], render: TableRenderer = aligned_table) -> str:
    """Render one line per group of layouts, and a summary line."""
    if not rankings:
        return f"no model has {MIN_LAYOUTS} or more measured layouts on the same GPUs to rank"
    rows = [(own.name, str(own.layouts), f"{own.tau:.2f}", f"{100 * own.regret:.1f}") for own in rankings]
    tau, worst = median(own.tau for own in rankings), max(own.regret for own in rankings)
    regret = median(own.regret for own in rankings)
    summary = f"\n\ntau: median {tau:.2f}; regret: median {100 * regret:.1f} %, largest {100 * worst:.1f} %"
    return render(("model, system, GPUs, precision", "layouts", "tau", "regret %"), rows) + summary


def _cross_validate(
    runs: Sequence[MeasuredRun], key: Callable[[MeasuredRun], str], progress: Progress
) -> list[RunComparison]:
    names = sorted({key(run) for run in runs})
    progress(f"with all {len(names)}")
    rates_of_all = fit_rates(runs)
    comparisons: list[RunComparison] = []
    for number, name in enumerate(names, 1):
        progress(f"without {name} ({number} of {len(names)})")
        rates = fit_rates([run for run in runs if key(run) != name], near=rates_of_all)
        comparisons += compare_runs([run for run in runs if key(run) == name], rates)
    return comparisons


def _cells(name: str, errors: RunErrors) -> tuple[str, ...]:
    figures = (
        str(errors.rows),
        f"{100 * errors.median:.1f}",
        f"{100 * errors.p90:.1f}",
        f"{100 * errors.bias:+.1f}",
        f"{100 * errors.covered:.0f}",
        str(errors.memory_rows),
        f"{100 * errors.memory_median:.1f}",
    )
    return name, *("-" if "nan" in figure else figure for figure in figures)


def _rank(name: str, pairs: Sequence[tuple[float, float]]) -> LayoutRanking:
    """Rank pairs of predicted and measured seconds per sample."""
    signs = [
        (1 if (first[0] - second[0]) * (first[1] - second[1]) > 0 else -1)
        for first, second in combinations(pairs, 2)
        if abs(log(first[1] / second[1])) > TIE
    ]
    chosen = min(pairs)[1]
    best = min(measured for _, measured in pairs)
    return LayoutRanking(name, len(pairs), sum(signs) / len(signs) if signs else 1.0, chosen / best - 1)


def _comparable_runs(row: RunComparison) -> str:
    """Name the group of runs whose layouts can be compared: same model, sequence, system, GPUs and precision."""
    model, layout = row.run.run.model, row.run.run.layout
    sizes = f"{model.layers}x{model.hidden}, seq {model.seq}"
    return f"{row.run.row.get('model') or ''} {sizes}, {row.run.run.system.name}, {layout.gpus} {layout.dtype}"


def _seconds_per_sample(row: RunComparison, step_s: float) -> float:
    # Layouts of a group may differ in their batch.
    return step_s / row.run.run.layout.global_batch


def _group(rows: Sequence[RunComparison], key: Callable[[RunComparison], str]) -> dict[str, list[RunComparison]]:
    groups: dict[str, list[RunComparison]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups
