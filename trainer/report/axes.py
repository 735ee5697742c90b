"""The axes of a chart: style, curves with a running mean, marks of resumes, and captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.report.curve import Curve, needs_log_scale, smooth
from trainer.report.run_folder import Run

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#3b82c4",
    "#e69f00",
    "#1a9e77",
    "#d6502b",
    "#b0659d",
    "#56b4e9",
    "#9aa3ad",
)


def add_axes(figure: Any, label: str, x: str = "step") -> Any:
    """Return the axes of a chart."""
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(label)
    axes.tick_params(length=0, which="both")
    axes.margins(x=0.01)
    return axes


def plot(axes: Any, points: Curve, colour: str, label: str = "_") -> bool:
    """Plot a curve and, if it has many points, its running mean; return whether it has.

    `label` is that of the curve in the legend; those that begin with an underscore are not shown.
    """
    is_smoothed = len(points.values) > 100  # noqa: PLR2004
    axes.plot(
        points.steps,
        points.values,
        color=colour,
        alpha=0.35 if is_smoothed else 1,
        linewidth=0.9 if is_smoothed else 1.6,
        label="_" if is_smoothed else label,
    )
    if is_smoothed:
        axes.plot(points.steps, smooth(points.values), color=colour, label=label)
    if needs_log_scale(points.values):
        axes.set_yscale("log")
        axes.grid(visible=True, which="minor", linewidth=0.3)
    return is_smoothed


def make_label(name: str) -> str:
    """Return a name as a label: matplotlib hides those that begin with an underscore and reads dollars as formulas."""
    return f" {name}".replace("$", r"\$")


def mark_resumes(axes: Any, run: Run) -> None:
    """Draw a line at each step from which the run was resumed."""
    for event in run.events_of("loaded"):
        if event.get("step"):
            axes.axvline(event["step"], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))


def note_resumes(run: Run) -> list[str]:
    """Return the part of a caption that explains these lines, if there are any."""
    return (
        ["dotted: the run resumed from a checkpoint"]
        if any(event.get("step") for event in run.events_of("loaded"))
        else []
    )


def legend_above(axes: Any, order: Sequence[str] = ()) -> None:
    """Put the legend above the axes, in this order."""
    pairs = list(zip(*axes.get_legend_handles_labels(), strict=True))
    pairs.sort(key=lambda pair: order.index(pair[1]) if pair[1] in order else -1)
    handles, labels = zip(*pairs, strict=True)
    style = {"fontsize": 9, "handlelength": 0.9, "handletextpad": 0.4, "columnspacing": 1.0, "borderaxespad": 0}
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=len(labels), **style)


def make_engineering_format() -> Any:
    """Return the format of numbers with k, M and G."""
    from matplotlib.ticker import EngFormatter  # noqa: PLC0415 - optional

    return EngFormatter(sep="")


def make_integer_ticks() -> Any:
    """Return the locator of ticks at integers only."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - optional

    return MaxNLocator(integer=True)


def make_sentence(parts: list[str]) -> str:
    """Return the parts of a caption as a sentence."""
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
