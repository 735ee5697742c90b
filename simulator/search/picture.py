"""The front as a picture: time against money, with the 80 % intervals, and everything that was beaten in grey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.search.option import Option
from simulator.search.plan import Plan

DAY = 86400.0
COLOURS = ("#1f5fa8", "#c4521a", "#2e7d4f", "#8a3b8f", "#7a6a00", "#a81f3c")
KINDS = (".png", ".svg", ".pdf")
LEGEND_COLUMNS = 4


def draw(plan: Plan, file: Path) -> None:
    figure(plan).savefig(file, dpi=130)


def figure(plan: Plan) -> Any:
    from matplotlib import ticker  # noqa: PLC0415  # slower to load than the rest of the planner
    from matplotlib.figure import Figure  # noqa: PLC0415

    found = Figure(figsize=(9, 5.5), layout="constrained")
    axes = found.add_subplot()
    runnable = [one for one in plan.front if not one.unsupported]
    shown = set(map(id, plan.front))
    beaten = [one for one in plan.options if id(one) not in shown and (not one.unsupported or not runnable)]
    axes.scatter(*_points(beaten), s=14, color="#b8b8b8", label="beaten in time and money", zorder=1)
    axes.plot(*_points(runnable), color="#666666", linewidth=1, zorder=2)
    kinds = list(dict.fromkeys((one.instance, one.purchase) for one in plan.front))
    for kind, colour in zip(kinds, COLOURS * len(kinds), strict=False):
        _series(axes, [one for one in plan.front if (one.instance, one.purchase) == kind], colour)
    _limits(axes, plan)
    axes.set(xscale="log", xlabel="time of the whole run, days", ylabel="money, USD")
    axes.set_title(
        f"{plan.question.named.name}, {_tokens(plan)} tokens: whole run with 80 % intervals; numbers are nodes"
    )
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(True, linewidth=0.3, alpha=0.6)
    # Below the axes: within them error bars may be anywhere.
    found.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=8, frameon=False)
    return found


def _tokens(plan: Plan) -> str:
    """As one types it: 1e12."""
    return f"{plan.question.tokens:g}".replace("e+", "e")


def _points(options: list[Option]) -> tuple[list[float], list[float]]:
    return [one.outlook.wall_s / DAY for one in options], [one.usd for one in options]


def _series(axes: object, options: list[Option], colour: str) -> None:
    first = options[0]
    days, usd = _points(options)
    spread = [
        [(one.outlook.wall_s - one.outlook.low_s) / DAY for one in options],
        [(one.outlook.high_s - one.outlook.wall_s) / DAY for one in options],
    ]
    cost = [[one.usd - one.usd_low for one in options], [one.usd_high - one.usd for one in options]]
    style = {"ecolor": colour, "elinewidth": 0.6, "alpha": 0.9, "color": colour}
    label = f"{first.instance} {first.purchase}"
    axes.errorbar(days, usd, xerr=spread, yerr=cost, fmt="o", markersize=5, label=label, **style)  # type: ignore[attr-defined]
    for one, x, y in zip(options, days, usd, strict=True):
        text = f"{one.nodes}{'!' if one.unsupported else ''}"
        axes.annotate(text, (x, y), textcoords="offset points", xytext=(5, 5), fontsize=8)  # type: ignore[attr-defined]


def _limits(axes: object, plan: Plan) -> None:
    if plan.question.deadline_s is not None:
        axes.axvline(plan.question.deadline_s / DAY, color="black", linestyle="--", linewidth=0.9, label="deadline")  # type: ignore[attr-defined]
    if plan.question.budget_usd is not None:
        axes.axhline(plan.question.budget_usd, color="black", linestyle=":", linewidth=0.9, label="budget")  # type: ignore[attr-defined]
    if plan.chosen:
        axes.scatter(*_points([plan.chosen]), s=150, facecolors="none", edgecolors="black", label="chosen", zorder=5)  # type: ignore[attr-defined]
