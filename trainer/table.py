"""Format a plain text table, with text aligned left and numbers right."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | float


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return the rows as lines of text, below the headers."""
    cells = [[_format_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    is_right = [all(isinstance(row[i], int | float) for row in rows) and bool(rows) for i in range(len(headers))]
    lines = [_format_row(headers, widths, is_right), "  ".join("-" * width for width in widths)]
    lines += [_format_row(row, widths, is_right) for row in cells]
    return "\n".join(lines)


def _format_row(cells: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    padded = [c.rjust(w) if right else c.ljust(w) for c, w, right in zip(cells, widths, is_right, strict=True)]
    return "  ".join(padded).rstrip()


def _format_cell(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
