"""`python -m simulator.memory_errors [IN.csv ...]`: predicted against measured memory by source, and what fits."""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from simulator.memory import GIB, memory
from simulator.row_values import RowError
from simulator.rows import run

DATA = Path(__file__).with_name("data")
FILES = (DATA / "runs.csv", DATA / "memory.csv")


@dataclass(frozen=True)
class Errors:
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
class Judged:
    """Runs by what happened and what is predicted."""

    ran_fits: int = 0
    ran_not: int = 0
    failed_fits: int = 0
    failed_not: int = 0


def errors(rows: Iterable[Mapping[str, str]]) -> list[Errors]:
    """Rows that their source doubts or that cannot be true are left out; the last entry is all of them."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        measured = float(row.get("memory_gb") or 0)
        if not measured or row.get("quality", "ok") not in ("ok", "") or row.get("fits") == "0":
            continue
        try:
            described = run(row)
        except RowError:
            continue
        said = memory(described.model, described.layout, described.system).printed / GIB
        found[row["source"]].append(said / measured - 1)
    each = [Errors(source, tuple(values)) for source, values in sorted(found.items())]
    return [*each, Errors("all", tuple(error for one in each for error in one.each))]


def judged(rows: Iterable[Mapping[str, str]]) -> Judged:
    found = Judged()
    for row in rows:
        if row.get("fits") not in ("0", "1"):
            continue
        try:
            described = run(row)
        except RowError:
            continue
        fits = memory(described.model, described.layout, described.system).fits
        name = ("ran" if row["fits"] == "1" else "failed") + ("_fits" if fits else "_not")
        setattr(found, name, getattr(found, name) + 1)
    return found


def table(each: list[Errors]) -> str:
    lines = ["| source | rows | median | p90 | bias |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {one.source} | {len(one.each)} | {one.median:.1%} | {one.p90:.1%} | {median(one.each):+.1%} |"
        for one in each
    ]
    return "\n".join(lines)


def read(paths: Iterable[Path]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for path in paths:
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    return rows


def main(words: list[str]) -> int:
    rows = read([Path(word) for word in words] or FILES)
    print(table(errors(rows)))
    found = judged(rows)
    print(f"\nran: {found.ran_fits} predicted to fit, {found.ran_not} not")
    print(f"out of memory: {found.failed_not} predicted so, {found.failed_fits} predicted to fit")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
