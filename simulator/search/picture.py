"""The front as a chart of time against cost with 80 % intervals; options that another beats are grey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.search.option import Option
from simulator.search.plan import Plan

DAY_S = 86400.0
COLOURS = ("#1f5fa8", "#c4521a", "#2e7d4f", "#8a3b8f", "#7a6a00", "#a81f3c")
KINDS = (".png", ".svg", ".pdf")
LEGEND_COLUMNS = 4


def draw(plan: Plan, file: Path) -> None:
    """Write the chart to a file."""
    build_figure(plan).savefig(file, dpi=130)


def build_figure(plan: Plan) -> Any:
    """Return the chart as a matplotlib figure."""
    from matplotlib import ticker  # noqa: PLC0415  # slow to import
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    runnable = [option for option in plan.front if not option.unsupported]
    shown = set(map(id, plan.front))
    beaten = [option for option in plan.options if id(option) not in shown and (not option.unsupported or not runnable)]
    axes.scatter(*_points(beaten), s=14, color="#b8b8b8", label="beaten in time and cost", zorder=1)
    axes.plot(*_points(runnable), color="#666666", linewidth=1, zorder=2)
    kinds = list(dict.fromkeys((option.instance, option.purchase) for option in plan.front))
    for kind, colour in zip(kinds, COLOURS * len(kinds), strict=False):
        _draw_series(axes, [option for option in plan.front if (option.instance, option.purchase) == kind], colour)
    _draw_limits(axes, plan)
    axes.set(xscale="log", xlabel="time of the whole run, days", ylabel="cost, USD")
    axes.set_title(
        f"{plan.question.named.name}, {_tokens(plan)} tokens: whole run with 80 % intervals; numbers are nodes"
    )
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(True, linewidth=0.3, alpha=0.6)
    # Below the axes, because error bars may be anywhere inside them.
    figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=8, frameon=False)
    return figure


def _tokens(plan: Plan) -> str:
    """Return the number of tokens as a user types it: 1e12."""
    return f"{plan.question.tokens:g}".replace("e+", "e")


def _points(options: list[Option]) -> tuple[list[float], list[float]]:
    return [option.outlook.wall_s / DAY_S for option in options], [option.usd for option in options]


def _draw_series(axes: object, options: list[Option], colour: str) -> None:
    first = options[0]
    days, usd = _points(options)
    spread = [
        [(option.outlook.wall_s - option.outlook.low_s) / DAY_S for option in options],
        [(option.outlook.high_s - option.outlook.wall_s) / DAY_S for option in options],
    ]
    cost = [[option.usd - option.usd_low for option in options], [option.usd_high - option.usd for option in options]]
    style = {"ecolor": colour, "elinewidth": 0.6, "alpha": 0.9, "color": colour}
    label = f"{first.instance} {first.purchase}"
    axes.errorbar(days, usd, xerr=spread, yerr=cost, fmt="o", markersize=5, label=label, **style)  # type: ignore[attr-defined]
    for option, x, y in zip(options, days, usd, strict=True):
        text = f"{option.nodes}{'!' if option.unsupported else ''}"
        axes.annotate(text, (x, y), textcoords="offset points", xytext=(5, 5), fontsize=8)  # type: ignore[attr-defined]


def _draw_limits(axes: object, plan: Plan) -> None:
    if plan.question.deadline_s is not None:
        axes.axvline(plan.question.deadline_s / DAY_S, color="black", linestyle="--", linewidth=0.9, label="deadline")  # type: ignore[attr-defined]
    if plan.question.budget_usd is not None:
        axes.axhline(plan.question.budget_usd, color="black", linestyle=":", linewidth=0.9, label="budget")  # type: ignore[attr-defined]
    if plan.chosen:
        axes.scatter(*_points([plan.chosen]), s=150, facecolors="none", edgecolors="black", label="chosen", zorder=5)  # type: ignore[attr-defined]
