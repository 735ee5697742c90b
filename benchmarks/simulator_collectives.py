"""How far the simulator's collectives are from measured ones, fitted and on systems that the fit did not see."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median

import yaml

from simulator.collective_errors import LEAST_BYTES
from simulator.collective_rows import question
from simulator.collectives import Group, Op
from simulator.collectives.constants import Constants, constants, fitted
from simulator.collectives.fit import Measured, errors, fit
from simulator.row_values import RowError
from simulator.system import System
from simulator.tables import read_table

DATA = Path(__file__).parents[1] / "simulator" / "data" / "collectives.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit anew and print the constants")
    measured = read(DATA)
    if parser.parse_args().fit:
        print(yaml.safe_dump(fit(measured)))
        return
    left_out = cross_validated(measured)
    seen = {system: errors_of(rows, fitted()) for system, rows in by_system(measured).items()}
    print(f"{'':24} {'':>5}   in the fit       left out of the fit")
    print(f"{'system':24} {'rows':>5} {'median %':>9} {'p90 %':>6} {'median %':>9} {'p90 %':>6} {'bias %':>7}")
    for system in sorted(seen):
        print(line(system, seen[system], left_out[system]))
    print(line("all", [e for row in seen.values() for e in row], [e for row in left_out.values() for e in row]))


def read(path: Path) -> list[Measured]:
    """Rows of one collective on one system together; what the model cannot answer is left out."""
    found: dict[tuple[Op, Group, System, float], list[tuple[float, float]]] = defaultdict(list)
    for row in read_table(path):
        try:
            asked = question(row)
        except RowError:
            continue
        if row["time_us"] and asked.size >= LEAST_BYTES:
            key = (asked.op, asked.group, asked.system, asked.launch_us)
            found[key].append((asked.size, float(row["time_us"])))
    return [_measured(*key, points) for key, points in found.items()]


def _measured(op: Op, group: Group, system: System, launch_us: float, points: list[tuple[float, float]]) -> Measured:
    return Measured(op, group, system, tuple(p[0] for p in points), tuple(p[1] for p in points), launch_us)


def cross_validated(measured: Sequence[Measured]) -> dict[str, list[float]]:
    """Errors of each system with constants that were fitted to all others."""
    found = {}
    for system, rows in by_system(measured).items():
        others = [one for one in measured if one.system.name != system]
        found[system] = errors_of(rows, constants(fit(others)))
    return found


def by_system(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        found[one.system.name].append(one)
    return found


def errors_of(measured: Sequence[Measured], known: Constants) -> list[float]:
    return [error for one in measured for error in errors(one, known)]


def line(name: str, seen: Sequence[float], left_out: Sequence[float]) -> str:
    figures = [100 * value for wrong in (seen, left_out) for value in _spread(wrong)]
    bias = 100 * sum(left_out) / len(left_out)
    return (
        f"{name:24} {len(seen):5} {figures[0]:9.1f} {figures[1]:6.1f} {figures[2]:9.1f} {figures[3]:6.1f} {bias:+7.1f}"
    )


def _spread(wrong: Sequence[float]) -> tuple[float, float]:
    sizes = sorted(abs(error) for error in wrong)
    return median(sizes), sizes[ceil(0.9 * len(sizes)) - 1]


if __name__ == "__main__":
    main()
