"""A picture, drawn once and kept twice: PNG for a slide, SVG for the page."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INK, GRID = "#1f2328", "#d8dee4"
STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    # Text stays text: it takes the page's font and can be searched.
    "svg.fonttype": "none",
}


class NoDrawingError(Exception):
    """matplotlib is not there; the message says how to get it."""


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    caption: str
    png: bytes
    svg: str


def draw_picture(name: str, title: str, draw: Callable[[Any], str | None]) -> Picture | None:
    """`draw` fills a figure and returns its caption, or None where there is nothing to show."""
    try:
        import matplotlib  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        needs = "pictures need the package matplotlib, which is not installed"
        raise NoDrawingError(f"{needs}: pip install matplotlib, or say --no-pictures") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        caption = draw(figure)
        if caption is None:
            return None
        svg = _svg(figure)  # the page has a heading of its own
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        return Picture(name, title, caption, _png(figure), svg)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def _svg(figure: Any) -> str:
    """For a page: no background, and the ink is the page's own, so one picture serves light and dark."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
