"""Lay out tables and text for the width of the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from trainer.config.errors import ConfigProblem
from trainer.table import table

DEFAULT_COLUMNS = 116
"""Width used when the output is not a terminal."""
MIN_COLUMNS = 40
INDENT = "  "
ALLOWED = "; allowed: "
UNIT = re.compile(r"(?<=\d) (?=(?:d|h|min|s|USD|MB|GB|GB/s)\b)")
NO_BREAK_SPACE = "\u00a0"
"""Keeps a figure and its unit on the same line."""

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headers and rows; the first column identifies the row."""


def program_name(command: str) -> str:
    """Return how the user started a command, for its usage line: through `muster` or directly."""
    return f"muster {command}" if is_muster() else f"python -m simulator {command}"


def error_prefix() -> str:
    """Return the start of a one-line error message: the command as it was typed after `muster`, or this package."""
    return program_name(sys.argv[1]) if is_muster() and len(sys.argv) > 1 else "simulator"


def is_muster() -> bool:
    """Return whether the command was started through `muster`, whose errors all look the same."""
    return Path(sys.argv[0]).name == "muster"


def terminal_width() -> int:
    """Return the usable width of the terminal in columns."""
    return max(MIN_COLUMNS, shutil.get_terminal_size(fallback=(DEFAULT_COLUMNS, 24)).columns)


def render_table(columns: int, *variants: Table) -> str:
    """Render the first variant that is narrow enough.

    If none is, render the first in several blocks, each with the first column.
    """
    for heads, rows in variants:
        if _width_of(text := table(heads, rows)) <= columns:
            return text
    return "\n\n".join(_split_columns(columns, *variants[0]))


def wrap_text(text: str, columns: int) -> str:
    """Wrap each line; long words such as instance names stay whole."""
    return "\n".join(_wrap(line, columns) for line in text.split("\n"))


def format_problem(problem: ConfigProblem, columns: int) -> str:
    """Format a problem for the terminal; an allowed list longer than a line comes last, after the fix."""
    message, listed, names = problem.message.partition(ALLOWED)
    if not (listed and problem.fix) or len(problem.message) <= columns:
        return wrap_text(f"{error_prefix()}: {problem}", columns)
    advice = ConfigProblem(problem.where, message, problem.fix)
    return wrap_text(f"{error_prefix()}: {advice}\n{INDENT}allowed: {names}", columns)


def format_muster_problem(problem: ConfigProblem, columns: int) -> str:
    """Format a problem as `muster` formats its errors: a cross, and the fix in a line of its own."""
    advice = f"\n{INDENT}fix: {problem.fix}" if problem.fix else ""
    message, listed, names = problem.message.partition(ALLOWED)
    if listed and len(problem.message) > columns:
        advice += f"\n{INDENT}allowed: {names}"
    else:
        message = problem.message
    return wrap_text(f"✗ {ConfigProblem(problem.where, message)}{advice}", columns)


def _split_columns(columns: int, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    blocks: list[list[int]] = []
    for column in range(1, len(heads)):
        if blocks and _width_of(_select_columns(heads, rows, [*blocks[-1], column])) <= columns:
            blocks[-1].append(column)
        else:
            blocks.append([0, column])
    return [_select_columns(heads, rows, block) for block in blocks]


def _select_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> str:
    return table([heads[n] for n in columns], [[row[n] for n in columns] for row in rows])


def _width_of(text: str) -> int:
    return max(map(len, text.split("\n")))


def _wrap(line: str, columns: int) -> str:
    continuation = INDENT * 2 if line.startswith(INDENT) else INDENT
    lines = textwrap.wrap(
        UNIT.sub(NO_BREAK_SPACE, line),
        columns,
        subsequent_indent=continuation,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(NO_BREAK_SPACE, " ")
