"""Predicted against measured memory by source, and what fits."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from simulator.memory.peak import GIB, predict_memory
from simulator.rows.run import parse_run_row
from simulator.rows.tables import TableError, read_table
from simulator.rows.values import RowError

DATA = Path(__file__).parents[1] / "data"
FILES = (DATA / "runs.csv", DATA / "memory.csv", DATA / "memory_new.csv")


@dataclass(frozen=True)
class MemoryErrors:
    """Relative, with their sign."""

    source: str
    each: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(map(abs, self.each))

    @property
    def p90(self) -> float:
        sizes = sorted(map(abs, self.each))
        return quantiles(sizes, n=10, method="inclusive")[-1] if len(sizes) > 1 else sizes[0]


@dataclass
class CapacityVerdicts:
    """Runs by what happened and what is predicted."""

    ran_fits: int = 0
    ran_not: int = 0
    failed_fits: int = 0
    failed_not: int = 0


def memory_errors_by_source(rows: Iterable[Mapping[str, str]], *, hidden: bool = False) -> list[MemoryErrors]:
    """Rows that their source doubts or that cannot be true are left out; the last entry is all of them."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        measured = _number(row.get("memory_gb"))
        if not measured or row.get("quality", "ok") not in ("ok", "") or row.get("fits") == "0":
            continue
        try:
            described = parse_run_row(row, known=not hidden)
        except RowError:
            continue
        said = predict_memory(described.model, described.layout, described.system).reported / GIB
        found[row.get("source") or "unnamed"].append(said / measured - 1)
    each = [MemoryErrors(source, tuple(values)) for source, values in sorted(found.items())]
    return [*each, MemoryErrors("all", tuple(error for one in each for error in one.each))]


def judge_capacity(rows: Iterable[Mapping[str, str]]) -> CapacityVerdicts:
    found = CapacityVerdicts()
    for row in rows:
        if row.get("fits") not in ("0", "1"):
            continue
        try:
            described = parse_run_row(row)
        except RowError:
            continue
        fits = predict_memory(described.model, described.layout, described.system).fits
        name = ("ran" if row["fits"] == "1" else "failed") + ("_fits" if fits else "_not")
        setattr(found, name, getattr(found, name) + 1)
    return found


def memory_error_table(each: list[MemoryErrors]) -> str:
    lines = ["| source | rows | median | p90 | bias |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {one.source} | {len(one.each)} | {one.median:.1%} | {one.p90:.1%} | {median(one.each):+.1%} |"
        for one in each
    ]
    return "\n".join(lines)


def read_tables(paths: Iterable[Path]) -> list[dict[str, str]]:
    return [row for path in paths for row in read_table(path)]


def main(words: list[str]) -> int:
    asked = _arguments(words)
    try:
        rows = read_tables(asked.files or FILES)
    except TableError as bad:
        return _refused(str(bad))
    each = memory_errors_by_source(rows, hidden=asked.unknown)
    if not each[-1].each:
        return _refused("rows: none with a measured memory_gb; allowed: one or more; fill memory_gb in")
    print(memory_error_table(each))
    found = judge_capacity(rows)
    print(f"\nran: {found.ran_fits} predicted to fit, {found.ran_not} not")
    print(f"out of memory: {found.failed_not} predicted so, {found.failed_fits} predicted to fit")
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator.fit.memory_errors", description=__doc__)
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="IN.csv", help="columns of simulator/data/runs.csv; without: all we have"
    )
    parser.add_argument("--unknown", action="store_true", help="as if no trainer's habits were known")
    return parser.parse_args(words)


def _number(text: str | None) -> float:
    """0 where it is no number above 0."""
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0


def _refused(why: str) -> int:
    print(f"simulator: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
