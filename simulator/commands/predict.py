"""`python -m simulator predict --runs|--collectives IN.csv --out OUT.csv`: rows with what the model says of each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.tables import TableError, read_table, write_table

MODULES = {"runs": "simulator.run_rows", "collectives": "simulator.collective_rows"}
"""By kind of row: where `predicted(rows) -> rows with more columns` is."""


def main(words: list[str]) -> int:
    asked = _arguments(words)
    kind = next(kind for kind in MODULES if getattr(asked, kind))
    predicted: Callable[[Any], list[dict[str, str]]] = import_module(MODULES[kind]).predicted
    try:
        rows = predicted(read_table(getattr(asked, kind)))
        write_table(asked.out, rows)
    except TableError as bad:
        print(f"simulator: {bad}", file=sys.stderr)
        return 2
    failed = sum(bool(row["error"]) for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} rows predicted, {failed} with an error: {asked.out}")
    return 0


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulator predict", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    for kind in MODULES:
        which.add_argument(f"--{kind}", type=Path, metavar="IN.csv")
    parser.add_argument("--out", type=Path, metavar="OUT.csv", required=True)
    return parser.parse_args(words)
