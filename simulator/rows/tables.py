"""Read and write CSV tables: a header and rows of text cells."""

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
    """An unusable table; the message names the property, its value, the allowed values and a fix."""


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file; raise TableError if it is not a table with a header and rows."""
    try:
        # utf-8-sig drops the byte order mark of spreadsheets, which would become part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, restkey="", restval="")
            rows, names = list(reader), reader.fieldnames or []
    except FileNotFoundError:
        raise TableError(f"file: {path} does not exist; allowed: a CSV file; name another") from None
    except OSError as error:
        raise TableError(f"file: {path} cannot be read ({error.strerror}); allowed: a CSV file; name another") from None
    except (UnicodeDecodeError, csv.Error):
        raise TableError(f"file: {path} is not a text table; allowed: a CSV file in UTF-8; name another") from None
    if not rows:
        raise TableError(f"file: {path}; allowed: a header and at least one row; fill it")
    long = next((number for number, row in enumerate(rows, start=2) if "" in row), None)
    if long:
        raise TableError(f"line: {long}; allowed: {len(names)} cells as in the header; correct {path}")
    return rows


def read_header(path: Path) -> list[str]:
    """Return the column names of a CSV file."""
    with path.open(newline="", encoding="utf-8") as lines:
        return next(csv.reader(lines))


def describe_unread_columns(names: Collection[str], allowed: Sequence[str]) -> list[str]:
    """Return a message for every column that is not read, with the closest name of a missing column."""
    messages = []
    absent = [name for name in allowed if name not in names]
    for name in names:
        if name not in allowed:
            near = get_close_matches(name.lower(), absent, n=1)
            messages.append(f"column {name!r} is not read" + (f"; did you mean {near[0]!r}?" if near else ""))
    return messages


def write_table(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write the rows and replace an existing file atomically: it may be the table that they were read from."""
    buffer = StringIO(newline="")
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        _write(path, buffer.getvalue())
    except FileNotFoundError:
        raise TableError(
            f"--out: {path}; allowed: a file in a folder that exists; create {path.parent} first"
        ) from None
    except OSError as error:
        raise TableError(
            f"--out: {path} ({error.strerror}); allowed: a file that can be written; name another"
        ) from None


def _write(path: Path, text: str) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        # A pipe, a terminal or /dev/stdout must be written to, not replaced by a file.
        path.write_text(text, encoding="utf-8", newline="")
        return
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(EACCES, os.strerror(EACCES))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        if path.exists():
            copymode(path, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
