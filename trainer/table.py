"""A plain text table: text to the left, numbers to the right, readable in any log."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | float


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) for row in rows) and bool(rows) for i in range(len(headers))]
    lines = [_line(headers, widths, right), "  ".join("-" * width for width in widths)]
    lines += [_line(row, widths, right) for row in cells]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)]
    return "  ".join(padded).rstrip()


def _text(cell: Cell) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
