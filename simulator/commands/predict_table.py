"""Rows of a CSV file with what the model says of each: the part of `predict` that takes tables."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.rows.tables import TableError, describe_unread_columns, read_table, write_table

MODULES = {"runs": "simulator.rows.run_table", "collectives": "simulator.rows.collective_table"}
"""By kind of row: where `list_columns()` and `predict_rows(rows) -> rows with more columns` are."""
NOTHING = 1


def main(kind: str, file: Path, out: Path) -> int:
    module: Any = import_module(MODULES[kind])
    try:
        given = read_table(file)
        for said in describe_unread_columns(given[0], module.list_columns()):
            print(f"simulator: {said}", file=sys.stderr)
        rows: list[dict[str, str]] = module.predict_rows(given)
        write_table(out, rows)
    except TableError as bad:
        print(f"simulator: {bad}", file=sys.stderr)
        return 2
    reasons = [row["error"] for row in rows if row["error"]]
    print(f"{len(rows) - len(reasons)} of {len(rows)} rows predicted, {len(reasons)} with an error: {out}")
    if len(reasons) == len(rows):
        print(f"simulator: no row could be predicted; the first: {reasons[0]}", file=sys.stderr)
        return NOTHING
    return 0
