"""`python -m simulator predict --runs|--collectives IN.csv --out OUT.csv`: rows with what the model says of each."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.tables import TableError, read_table, unread, write_table

MODULES = {"runs": "simulator.run_rows", "collectives": "simulator.collective_rows"}
"""By kind of row: where `columns()` and `predicted(rows) -> rows with more columns` are."""
NOTHING = 1


def main(words: list[str]) -> int:
    asked = _arguments(words)
    kind = next(kind for kind in MODULES if getattr(asked, kind))
    module: Any = import_module(MODULES[kind])
    try:
        given = read_table(getattr(asked, kind))
        for said in unread(given[0], module.columns()):
            print(f"simulator: {said}", file=sys.stderr)
        rows: list[dict[str, str]] = module.predicted(given)
        write_table(asked.out, rows)
    except TableError as bad:
        print(f"simulator: {bad}", file=sys.stderr)
        return 2
    reasons = [row["error"] for row in rows if row["error"]]
    print(f"{len(rows) - len(reasons)} of {len(rows)} rows predicted, {len(reasons)} with an error: {asked.out}")
    if len(reasons) == len(rows):
        print(f"simulator: no row could be predicted; the first: {reasons[0]}", file=sys.stderr)
        return NOTHING
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator predict", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    for kind in MODULES:
        columns = f"columns of simulator/data/{kind}.csv; what a row leaves out is inferred"
        which.add_argument(f"--{kind}", type=Path, metavar="IN.csv", help=columns)
    parser.add_argument("--out", type=Path, metavar="OUT.csv", required=True, help="the rows, with what was predicted")
    return parser.parse_args(words)
