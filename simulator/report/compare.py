"""Runs beside what was predicted of them, and how both scale with the number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from simulator.job import Job
from simulator.machines.compared import Machine, Machines, note
from simulator.parameters import parameters
from simulator.report.advice import Change, changes
from simulator.report.measured import PARTS, Measured
from simulator.report.predicted import Predicted, predicted


@dataclass(frozen=True)
class Both:
    predicted: float
    measured: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run."""

    run: Measured
    predicted: Predicted
    machine: Machine
    name: str
    """Of the run, with the model's size where others of the name have another."""
    series: int
    """Runs of the same model in the same precision make a curve; those of another one make another."""
    efficiency: Both
    """Throughput of a rank over that of the series' smallest run."""
    speed_up: Both
    """Throughput over that of one rank of the smallest run."""
    changes: list[Change]

    @property
    def error(self) -> float:
        return self.predicted.step_s / self.run.step_s - 1

    @property
    def within(self) -> bool:
        return self.predicted.low_s <= self.run.step_s <= self.predicted.high_s

    @property
    def communication(self) -> Both | None:
        """Share of a step that is communication nothing hides; None where the run did not measure it."""
        own = 0.0 if self.run.ranks == 1 else self.run.split.get("communication")
        if own is None:
            return None
        return Both(self.predicted.split["communication"] / self.predicted.step_s, own / self.run.step_s)

    @property
    def mfu(self) -> Both | None:
        """Both relative to the peak that the run names."""
        mfu = self.run.mfu
        return None if mfu is None else Both(mfu * self.run.step_s / self.predicted.step_s, mfu)


@dataclass(frozen=True)
class Comparison:
    machines: str
    rows: list[Row]
    notes: list[str]

    @property
    def largest(self) -> Row:
        """The run that says most about scaling."""
        return max(self.rows, key=lambda row: row.run.ranks)

    @property
    def series(self) -> list[list[Row]]:
        numbers = sorted({row.series for row in self.rows})
        return [[row for row in self.rows if row.series == number] for number in numbers]

    @property
    def scales(self) -> bool:
        return any(len({row.run.ranks for row in rows}) > 1 for rows in self.series)

    @property
    def off(self) -> float:
        """Median of the errors of step times, without their signs."""
        return median(abs(row.error) for row in self.rows)


def compare(runs: Sequence[Measured], machines: Machines) -> Comparison:
    kinds = list(dict.fromkeys(_kind(run) for run in runs))
    ordered = sorted(runs, key=lambda run: (kinds.index(_kind(run)), run.ranks))
    on = [machines.of(run) for run in ordered]
    found = [predicted(run, machine) for run, machine in zip(ordered, on, strict=True)]
    rows = []
    for run, machine, said in zip(ordered, on, found, strict=True):
        number = kinds.index(_kind(run))
        base = next(i for i, other in enumerate(ordered) if _kind(other) == _kind(run))
        efficiency = Both(_per_rank(run, said.step_s) / _per_rank(ordered[base], found[base].step_s),
                          _per_rank(run, run.step_s) / _per_rank(ordered[base], ordered[base].step_s))  # fmt: skip
        speed_up = Both(run.ranks * efficiency.predicted, run.ranks * efficiency.measured)
        rows.append(
            Row(
                run=run,
                predicted=said,
                machine=machine,
                name=_name(run, ordered),
                series=number,
                efficiency=efficiency,
                speed_up=speed_up,
                changes=changes(run, said, machine),
            )
        )
    return Comparison(machines.name, rows, _joined([note for row in rows for note in _notes(row)]))


def as_json(found: Comparison) -> dict[str, Any]:
    return {
        "schema": 1,
        "machines": found.machines,
        "median_error": found.off,
        "change_first": found.largest.changes[0].text if found.largest.changes else None,
        "notes": found.notes,
        "runs": [_row_json(row) for row in found.rows],
    }


def _row_json(row: Row) -> dict[str, Any]:
    run, said = row.run, row.predicted
    return {
        "folder": str(run.folder),
        "name": run.name,
        "ranks": run.ranks,
        "nodes": run.nodes,
        "end": run.end,
        "step": run.reached,
        "steps": run.config.steps,
        "step_s": {"predicted": said.step_s, "low": said.low_s, "high": said.high_s, "measured": run.step_s},
        "error": row.error,
        "within_interval": row.within,
        "split_s": {part: {"predicted": said.split[part], "measured": run.split.get(part)} for part in PARTS},
        "predicted_parts_s": said.parts,
        "samples_per_s": {"predicted": run.config.batch.size / said.step_s, "measured": run.samples_per_s},
        "efficiency": _pair(row.efficiency),
        "speed_up": _pair(row.speed_up),
        "exposed_communication": _pair(row.communication),
        "mfu": _pair(row.mfu),
        "changes": [{"saves_share": one.saves, "text": one.text} for one in row.changes],
    }


def _pair(both: Both | None) -> dict[str, float] | None:
    return {"predicted": both.predicted, "measured": both.measured} if both else None


def _kind(run: Measured) -> tuple[object, ...]:
    return run.config.model, run.config.data.seq_len, run.config.precision


def _name(run: Measured, runs: Sequence[Measured]) -> str:
    others = {_kind(other) for other in runs if other.name == run.name}
    if len(others) == 1:
        return run.name
    count = parameters(Job(run.config, run.micro, run.micro).model).total
    return f"{run.name} ({count / 1e6:,.3g} M, {run.config.precision})"


def _per_rank(run: Measured, step_s: float) -> float:
    return run.config.batch.size / step_s / run.ranks


def _notes(row: Row) -> list[tuple[str, int, str]]:
    """Whose, on how many ranks, and what."""
    run, found = row.run, []
    if not run.finished:
        ended = run.end if run.end == "no end recorded" else f"it ended as {run.end.replace('_', ' ')}"
        found.append(
            f"is not finished ({ended}): step {run.reached:,} of {run.config.steps:,}; "
            f"compared by its last {run.lines} records"
        )
    if run.ranks > 1 and "communication" not in run.split:
        found.append("did not measure communication, so it is inside compute: set metrics.profile_every")
    if not row.predicted.fits:
        found.append("should not fit into memory by the prediction, and did")
    busy = note(row.machine, run)
    return [(row.name, run.ranks, text) for text in [*found, busy] if text]


def _joined(notes: Sequence[tuple[str, int, str]]) -> list[str]:
    """The same of several runs is said once."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for name, count, text in notes:
        ranks.setdefault((name, text), []).append(count)
    return [
        f"{name} on {', '.join(map(str, counts))} rank{'s' * (counts != [1])} {text}"
        for (name, text), counts in ranks.items()
    ]
