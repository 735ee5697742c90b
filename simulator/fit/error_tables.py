"""Render tables of errors, aligned for a terminal or as Markdown; the first column is text, the others are figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Row = Sequence[str]
TableRenderer = Callable[[Row, Sequence[Row]], str]


def aligned_table(heads: Row, rows: Sequence[Row]) -> str:
    """Render a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(_line(row, widths) for row in (heads, *rows))


def markdown_table(heads: Row, rows: Sequence[Row]) -> str:
    """Render a table in Markdown."""
    rule = "|---|" + "---:|" * (len(heads) - 1)
    return "\n".join([_cells(heads), rule, *map(_cells, rows)])


def _line(row: Row, widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)])


def _cells(row: Row) -> str:
    return f"| {' | '.join(row)} |"
