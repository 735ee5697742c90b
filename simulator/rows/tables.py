"""CSV files in and out: a header, one row a line, every cell a text."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from errno import EACCES
from io import StringIO
from pathlib import Path
from shutil import copymode


class TableError(ValueError):
    """property: value; allowed; fix."""


def read_table(path: Path) -> list[dict[str, str]]:
    try:
        # Spreadsheets begin a file with a mark that would become part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, restkey="", restval="")
            rows, names = list(reader), reader.fieldnames or []
    except FileNotFoundError:
        raise TableError(f"file: {path} does not exist; allowed: a CSV file; name another") from None
    except OSError as bad:
        raise TableError(f"file: {path} cannot be read ({bad.strerror}); allowed: a CSV file; name another") from None
    except (UnicodeDecodeError, csv.Error):
        raise TableError(f"file: {path} is no table of text; allowed: a CSV file in UTF-8; name another") from None
    if not rows:
        raise TableError(f"file: {path}; allowed: a header and at least one row; fill it")
    long = next((number for number, row in enumerate(rows, start=2) if "" in row), None)
    if long:
        raise TableError(f"line: {long}; allowed: {len(names)} cells as in the header; correct {path}")
    return rows


def read_header(path: Path) -> list[str]:
    with path.open(newline="", encoding="utf-8") as lines:
        return next(csv.reader(lines))


def describe_unread_columns(names: Collection[str], known: Sequence[str]) -> list[str]:
    """A sentence for every column that nothing reads, with the nearest of those that are not there."""
    found = []
    absent = [name for name in known if name not in names]
    for name in names:
        if name not in known:
            near = get_close_matches(name.lower(), absent, n=1)
            found.append(f"column {name!r} is not read" + (f"; did you mean {near[0]!r}?" if near else ""))
    return found


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """What was there is there until the new rows are whole: it may be the table that they were made from."""
    whole = StringIO(newline="")
    writer = csv.DictWriter(whole, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        _write(path, whole.getvalue())
    except FileNotFoundError:
        raise TableError(f"--out: {path}; allowed: a file in a folder that exists; make {path.parent} first") from None
    except OSError as bad:
        raise TableError(f"--out: {path} ({bad.strerror}); allowed: a file that can be written; name another") from None


def _write(path: Path, text: str) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        # A pipe, a terminal, /dev/stdout: somebody else's, and never the place for another file.
        path.write_text(text, encoding="utf-8", newline="")
        return
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(EACCES, os.strerror(EACCES))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        if path.exists():
            copymode(path, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
