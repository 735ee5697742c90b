"""Draw a chart with matplotlib, as PNG for slides and as SVG for the page."""

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
    # Text stays text, so that it has the page's font and can be searched.
    "svg.fonttype": "none",
}


class NoMatplotlibError(Exception):
    """Raised if charts are requested but matplotlib is not installed."""


@dataclass(frozen=True)
class Picture:
    """A chart with its caption."""

    name: str
    title: str
    caption: str
    png: bytes
    svg: str


def draw_picture(name: str, title: str, draw: Callable[[Any], str | None]) -> Picture | None:
    """Draw a chart; `draw` fills a figure and returns its caption, or None if there is nothing to show."""
    try:
        import matplotlib  # noqa: PLC0415 - optional
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        message = "charts need the package matplotlib: pip install matplotlib, or use --no-pictures"
        raise NoMatplotlibError(message) from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        caption = draw(figure)
        if caption is None:
            return None
        svg = _render_svg(figure)  # without the title, because the page has its own headings
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        return Picture(name, title, caption, _render_png(figure), svg)


def _render_png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white")
    return buffer.getvalue()


def _render_svg(figure: Any) -> str:
    """Return an SVG without background and in the text colour of the page, for light and dark mode."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    return text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
