"""Compare measured runs with their predictions, and how both scale with the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from simulator.job import Job
from simulator.parameters import count_parameters
from simulator.report.advice import Change, list_changes
from simulator.report.machines import MachineLookup, RunMachine, describe_difference
from simulator.report.measured import PARTS, MeasuredRun
from simulator.report.predicted import PredictedRun, predict_run


@dataclass(frozen=True)
class Both:
    """The same figure predicted and measured."""

    predicted: float
    measured: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run with its prediction."""

    run: MeasuredRun
    predicted: PredictedRun
    machine: RunMachine
    name: str
    """Name of the run, with the model's size if runs of the same name differ in it."""
    series: int
    """Number of the curve: runs of the same model in the same precision are one curve."""
    efficiency: Both
    """Throughput per rank relative to the series' smallest run."""
    speed_up: Both
    """Throughput relative to one rank of the smallest run."""
    changes: list[Change]

    @property
    def error(self) -> float:
        return self.predicted.step_s / self.run.step_s - 1

    @property
    def within(self) -> bool:
        return self.predicted.low_s <= self.run.step_s <= self.predicted.high_s

    @property
    def communication(self) -> Both | None:
        """Share of a step that is exposed communication; None if the run did not measure it."""
        own = 0.0 if self.run.ranks == 1 else self.run.split.get("communication")
        if own is None:
            return None
        return Both(self.predicted.split["communication"] / self.predicted.step_s, own / self.run.step_s)

    @property
    def mfu(self) -> Both | None:
        """Utilization relative to the peak that the run names."""
        mfu = self.run.mfu
        return None if mfu is None else Both(mfu * self.run.step_s / self.predicted.step_s, mfu)


@dataclass(frozen=True)
class Comparison:
    """All runs of a report, and notes on those whose comparison is limited."""

    machines: str
    rows: list[Row]
    notes: list[str]

    @property
    def largest(self) -> Row:
        """The run with the most ranks, which says most about scaling."""
        return max(self.rows, key=lambda row: row.run.ranks)

    @property
    def series(self) -> list[list[Row]]:
        numbers = sorted({row.series for row in self.rows})
        return [[row for row in self.rows if row.series == number] for number in numbers]

    @property
    def scales(self) -> bool:
        return any(len({row.run.ranks for row in rows}) > 1 for rows in self.series)

    @property
    def median_error(self) -> float:
        """Median of the absolute errors of step times."""
        return median(abs(row.error) for row in self.rows)


def compare(runs: Sequence[MeasuredRun], machines: MachineLookup) -> Comparison:
    """Predict each run and return both, ordered by model and number of ranks."""
    kinds = list(dict.fromkeys(_kind(run) for run in runs))
    ordered = sorted(runs, key=lambda run: (kinds.index(_kind(run)), run.ranks))
    machine_of = [machines.of(run) for run in ordered]
    predictions = [predict_run(run, machine) for run, machine in zip(ordered, machine_of, strict=True)]
    rows = []
    for run, machine, predicted in zip(ordered, machine_of, predictions, strict=True):
        number = kinds.index(_kind(run))
        base = next(i for i, other in enumerate(ordered) if _kind(other) == _kind(run))
        efficiency = Both(
            _per_rank(run, predicted.step_s) / _per_rank(ordered[base], predictions[base].step_s),
            _per_rank(run, run.step_s) / _per_rank(ordered[base], ordered[base].step_s),
        )
        speed_up = Both(run.ranks * efficiency.predicted, run.ranks * efficiency.measured)
        rows.append(
            Row(
                run=run,
                predicted=predicted,
                machine=machine,
                name=_name(run, ordered),
                series=number,
                efficiency=efficiency,
                speed_up=speed_up,
                changes=list_changes(run, predicted, machine),
            )
        )
    return Comparison(machines.name, rows, _merge_notes([note for row in rows for note in _notes(row)]))


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as the content of report.json."""
    return {
        "schema": 1,
        "machines": comparison.machines,
        "median_error": comparison.median_error,
        "change_first": comparison.largest.changes[0].text if comparison.largest.changes else None,
        "notes": comparison.notes,
        "runs": [_row_json(row) for row in comparison.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    run, predicted = row.run, row.predicted
    return {
        "folder": str(run.folder),
        "name": run.name,
        "ranks": run.ranks,
        "nodes": run.nodes,
        "end": run.end,
        "step": run.reached,
        "steps": run.config.steps,
        "step_s": {
            "predicted": predicted.step_s,
            "low": predicted.low_s,
            "high": predicted.high_s,
            "measured": run.step_s,
        },
        "error": row.error,
        "within_interval": row.within,
        "split_s": {part: {"predicted": predicted.split[part], "measured": run.split.get(part)} for part in PARTS},
        "predicted_parts_s": predicted.parts,
        "samples_per_s": {"predicted": run.config.batch.size / predicted.step_s, "measured": run.samples_per_s},
        "efficiency": _pair(row.efficiency),
        "speed_up": _pair(row.speed_up),
        "exposed_communication": _pair(row.communication),
        "mfu": _pair(row.mfu),
        "changes": [{"saves_share": change.saves, "text": change.text} for change in row.changes],
    }


def _pair(both: Both | None) -> dict[str, float] | None:
    return {"predicted": both.predicted, "measured": both.measured} if both else None


def _kind(run: MeasuredRun) -> tuple[object, ...]:
    return run.config.model, run.config.data.seq_len, run.config.precision


def _name(run: MeasuredRun, runs: Sequence[MeasuredRun]) -> str:
    others = {_kind(other) for other in runs if other.name == run.name}
    if len(others) == 1:
        return run.name
    count = count_parameters(Job(run.config, run.micro, run.micro).model).total
    return f"{run.name} ({count / 1e6:,.3g} M, {run.config.precision})"


def _per_rank(run: MeasuredRun, step_s: float) -> float:
    return run.config.batch.size / step_s / run.ranks


def _notes(row: Row) -> list[tuple[str, int, str]]:
    """Return notes on a run as its name, its ranks and the text."""
    run, notes = row.run, []
    if not run.finished:
        ended = run.end if run.end == "no end recorded" else f"it ended as {run.end.replace('_', ' ')}"
        notes.append(
            f"is not finished ({ended}): step {run.reached:,} of {run.config.steps:,}; "
            f"compared by its last {run.lines} records"
        )
    if run.ranks > 1 and "communication" not in run.split:
        notes.append("did not measure communication, so it is inside compute: set metrics.profile_every")
    if not row.predicted.fits:
        notes.append("ran, although the prediction says that it does not fit in memory")
    difference = describe_difference(row.machine, run)
    return [(row.name, run.ranks, text) for text in [*notes, difference] if text]


def _merge_notes(notes: Sequence[tuple[str, int, str]]) -> list[str]:
    """Merge equal notes on several runs into one line."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for name, count, text in notes:
        ranks.setdefault((name, text), []).append(count)
    return [
        f"{name} on {', '.join(map(str, counts))} rank{'s' * (counts != [1])} {text}"
        for (name, text), counts in ranks.items()
    ]
