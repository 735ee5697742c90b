"""Compare predicted with measured memory by source, and predicted with actual out-of-memory failures."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from simulator.memory.peak import GIB, predict_memory
from simulator.rows.cells import RowError
from simulator.rows.run import parse_run_row
from simulator.rows.tables import TableError, read_table

DATA = Path(__file__).parents[1] / "data"
FILES = (DATA / "runs.csv", DATA / "memory.csv", DATA / "memory_new.csv")


@dataclass(frozen=True)
class MemoryErrors:
    """Signed relative errors of one source."""

    source: str
    errors: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(map(abs, self.errors))

    @property
    def p90(self) -> float:
        sizes = sorted(map(abs, self.errors))
        return quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]


@dataclass
class CapacityVerdicts:
    """Number of runs by what happened (ran or failed) and by prediction (fits or not)."""

    ran_fits: int = 0
    ran_not: int = 0
    failed_fits: int = 0
    failed_not: int = 0


def memory_errors_by_source(rows: Iterable[Mapping[str, str]], *, unknown_trainers: bool = False) -> list[MemoryErrors]:
    """Return the errors of each source, and of all as the last entry; invalid and doubted rows are left out.

    `unknown_trainers` predicts as if no trainer were identified.
    """
    by_source: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        measured = _number(row.get("memory_gb"))
        if not measured or row.get("quality", "ok") not in ("ok", "") or row.get("fits") == "0":
            continue
        try:
            described = parse_run_row(row, identify_trainer=not unknown_trainers)
        except RowError:
            continue
        predicted = predict_memory(described.model, described.layout, described.system).reported / GIB
        by_source[row.get("source") or "unnamed"].append(predicted / measured - 1)
    sources = [MemoryErrors(source, tuple(errors)) for source, errors in sorted(by_source.items())]
    return [*sources, MemoryErrors("all", tuple(error for own in sources for error in own.errors))]


def judge_capacity(rows: Iterable[Mapping[str, str]]) -> CapacityVerdicts:
    """Count how often the model predicts correctly that a run fits in memory."""
    verdicts = CapacityVerdicts()
    for row in rows:
        if row.get("fits") not in ("0", "1"):
            continue
        try:
            described = parse_run_row(row)
        except RowError:
            continue
        fits = predict_memory(described.model, described.layout, described.system).fits
        name = ("ran" if row["fits"] == "1" else "failed") + ("_fits" if fits else "_not")
        setattr(verdicts, name, getattr(verdicts, name) + 1)
    return verdicts


def memory_error_table(sources: list[MemoryErrors]) -> str:
    """Render one line per source, in Markdown."""
    lines = ["| source | rows | median | p90 | bias |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {own.source} | {len(own.errors)} | {own.median:.1%} | {own.p90:.1%} | {median(own.errors):+.1%} |"
        for own in sources
    ]
    return "\n".join(lines)


def read_tables(paths: Iterable[Path]) -> list[dict[str, str]]:
    """Read the rows of all tables."""
    return [row for path in paths for row in read_table(path)]


def main(arguments: list[str]) -> int:
    """Print the errors and the verdicts; return 2 if the tables cannot be used."""
    options = _parse_arguments(arguments)
    try:
        rows = read_tables(options.files or FILES)
    except TableError as error:
        return _reject(str(error))
    sources = memory_errors_by_source(rows, unknown_trainers=options.unknown)
    if not sources[-1].errors:
        return _reject("rows: none with a measured memory_gb; allowed: one or more; fill in memory_gb")
    print(memory_error_table(sources))
    verdicts = judge_capacity(rows)
    print(f"\nran: {verdicts.ran_fits} predicted to fit, {verdicts.ran_not} not")
    print(f"out of memory: {verdicts.failed_not} predicted so, {verdicts.failed_fits} predicted to fit")
    return 0


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator.fit.memory_errors", description=__doc__)
    parser.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="IN.csv",
        help="columns of simulator/data/runs.csv; default: all committed tables",
    )
    parser.add_argument("--unknown", action="store_true", help="predict as if no trainer were identified")
    return parser.parse_args(arguments)


def _number(text: str | None) -> float:
    """Return a positive number, or 0 if the cell is empty or invalid."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0


def _reject(message: str) -> int:
    print(f"simulator: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
