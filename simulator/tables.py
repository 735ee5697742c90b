"""CSV files in and out: a header, one row a line, every cell a text."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path


class TableError(ValueError):
    """property: value; allowed; fix."""


def read_table(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines, restkey="", restval="")
            rows, names = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as bad:
        raise TableError(f"file: {path}; allowed: a CSV file that can be read ({bad}); name another") from None
    if not rows:
        raise TableError(f"file: {path}; allowed: a header and at least one row; fill it")
    long = next((number for number, row in enumerate(rows, start=2) if "" in row), None)
    if long:
        raise TableError(f"line: {long}; allowed: {len(names)} cells as in the header; correct {path}")
    return rows


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as bad:
        raise TableError(f"--out: {path}; allowed: a file that can be written ({bad.strerror}); name another") from None
