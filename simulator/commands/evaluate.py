"""`python -m simulator evaluate IN.csv`: how far the model is from what was measured, by system."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from simulator.tables import TableError, read_table


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="simulator evaluate", description=__doc__)
    parser.add_argument("file", type=Path, metavar="IN.csv", help="columns of simulator/data/collectives.csv")
    asked = parser.parse_args(words)
    try:
        rows = read_table(asked.file)
    except TableError as bad:
        print(f"simulator: {bad}", file=sys.stderr)
        return 2
    if "op" in rows[0]:
        return _collectives(rows)
    print("simulator: columns: no `op`; allowed: those of data/collectives.csv; name such a file", file=sys.stderr)
    return 2


def _collectives(rows: list[dict[str, str]]) -> int:
    from simulator.collective_errors import errors_by_system, table  # noqa: PLC0415 only what is asked for is read

    print(table(errors_by_system(rows)))
    return 0
