"""An emulated run as one picture: loss, scaling, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.emulate.record import Line
from simulator.emulate.scaling import MEANS, Row

_SMALLEST = 0.01
"""Share of a step below which a part is drawn with the others."""


def draw(file: Path, title: str, lines: Sequence[Line], rows: Sequence[Row]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415  # not for --help

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _loss(axes[0][0], lines)
    _efficiency(axes[0][1], rows)
    _parts(axes[1][0], rows)
    _communication(axes[1][1], rows)
    figure.savefig(file, dpi=110)


def _loss(axis: Any, lines: Sequence[Line]) -> None:
    axis.plot([line.now_s for line in lines], [line.loss for line in lines])
    axis.set(title="loss", xlabel="modelled time (s)")


def _efficiency(axis: Any, rows: Sequence[Row]) -> None:
    axis.plot([row.ranks for row in rows], [100 * row.efficiency for row in rows], "o-", label="same work per rank")
    split = [row for row in rows if row.shared_efficiency is not None]
    axis.plot([r.ranks for r in split], [100 * (r.shared_efficiency or 0) for r in split], "s--", label="same batch")
    _by_ranks(axis, rows)
    axis.set(title="scaling efficiency against 1 rank (%)", ylim=(0, 105))
    axis.legend()


def _parts(axis: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    names = [name for name in rows[0].parts if any(row.parts[name] > _SMALLEST * row.step_s for row in rows)]
    below = [0.0] * len(rows)
    for name in names:
        heights = [1e3 * row.parts[name] for row in rows]
        axis.bar(places, heights, bottom=below, label=MEANS.get(name, name))
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axis.set(title="where a step goes (ms)", xlabel="ranks")
    axis.set_xticks(places, [str(row.ranks) for row in rows])
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)


def _communication(axis: Any, rows: Sequence[Row]) -> None:
    ranks = [row.ranks for row in rows]
    axis.plot(ranks, [1e3 * row.exposed_s for row in rows], "o-", label="exposed")
    axis.plot(ranks, [1e3 * row.hidden_s for row in rows], "s--", label="hidden behind work")
    axis.plot(ranks, [1e3 * row.wait_s for row in rows], "^:", label="waiting for the slowest")
    _by_ranks(axis, rows)
    axis.set(title="communication (ms a step)")
    axis.legend()


def _by_ranks(axis: Any, rows: Sequence[Row]) -> None:
    axis.set_xscale("log", base=4)
    axis.set_xticks([row.ranks for row in rows], [str(row.ranks) for row in rows])
    axis.minorticks_off()
    axis.set_xlabel("ranks")
