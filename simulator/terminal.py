"""Text within the width of a terminal: tables lose what is least needed or go on below, prose is wrapped."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence

from trainer.config.errors import ConfigProblem
from trainer.table import table

DEFAULT_COLUMNS = 116
"""Columns where there is no terminal to ask."""
LEAST = 40
INDENT = "  "
ALLOWED = "; allowed: "
UNIT = re.compile(r"(?<=\d) (?=(?:d|h|min|s|USD|GB|GB/s)\b)")
TIED = "\u00a0"
"""A space that no line ends at: a figure and its unit stay together."""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Heads and rows; the first column says which row it is."""


def terminal_width() -> int:
    return max(LEAST, shutil.get_terminal_size(fallback=(DEFAULT_COLUMNS, 24)).columns)


def render_table(columns: int, *ways: Table) -> str:
    """The first way that fits; where none does, the first with the columns that are too much below the others."""
    for heads, rows in ways:
        if _wide(text := table(heads, rows)) <= columns:
            return text
    return "\n\n".join(_stacked(columns, *ways[0]))


def wrap_text(text: str, columns: int) -> str:
    """Each line for itself; words such as names of machines stay whole."""
    return "\n".join(_wrap(line, columns) for line in text.split("\n"))


def format_problem(found: ConfigProblem, columns: int) -> str:
    """A list of what is allowed that is longer than a line comes last, after the advice."""
    message, listed, names = found.message.partition(ALLOWED)
    if not (listed and found.fix) or len(found.message) <= columns:
        return wrap_text(f"simulator: {found}", columns)
    advice = ConfigProblem(found.where, message, found.fix)
    return wrap_text(f"simulator: {advice}\n{INDENT}allowed: {names}", columns)


def _stacked(columns: int, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    parts: list[list[int]] = []
    for column in range(1, len(heads)):
        if parts and _wide(_picked(heads, rows, [*parts[-1], column])) <= columns:
            parts[-1].append(column)
        else:
            parts.append([0, column])
    return [_picked(heads, rows, part) for part in parts]


def _picked(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> str:
    return table([heads[n] for n in columns], [[row[n] for n in columns] for row in rows])


def _wide(text: str) -> int:
    return max(map(len, text.split("\n")))


def _wrap(line: str, columns: int) -> str:
    inside = INDENT * 2 if line.startswith(INDENT) else INDENT
    found = textwrap.wrap(
        UNIT.sub(TIED, line), columns, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(found).replace(TIED, " ")
