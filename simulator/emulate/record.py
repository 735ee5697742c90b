"""The output of an emulated run: a line per step, the scaling table, a JSON file and a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulator.emulate.clock import Tick
from simulator.emulate.scaling import PART_LABELS, Row

_MIN_SHARE = 0.01
"""Share of a step below which a part is not drawn."""


@dataclass(frozen=True)
class Line:
    """One step: the training result, and what the clock says."""

    step: int
    loss: float
    grad_norm: float
    skipped: bool
    rate: float
    now_s: float
    """Modelled time since the start."""
    units_per_s: float
    efficiency: float
    tick: Tick

    def text(self, steps: int, unit: str) -> str:
        tick = self.tick
        columns = [
            f"step {self.step:>{len(str(steps))}}/{steps}",
            f"loss {self.loss:.4f}",
            f"{_time(tick.step_s)} a step",
            f"{self.units_per_s:,.0f} {unit}/s",
            f"communication {tick.exposed_s / tick.step_s:.1%}",
            f"efficiency {self.efficiency:.1%}",
        ]
        return "  ".join(columns)


def format_table(rows: Sequence[Row], unit: str) -> str:
    """Return the scaling table as text, figures to the right."""
    heads = ["ranks", "step", f"{unit}/s", "efficiency", "same batch", "exposed", "bottleneck"]
    body = [
        [
            str(row.ranks),
            _time(row.step_s),
            f"{row.units_per_s:,.0f}",
            f"{row.efficiency:.1%}",
            "-" if row.shared_efficiency is None else f"{row.shared_efficiency:.1%}",
            f"{row.communication:.1%}",
            row.bottleneck,
        ]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [heads, *body]) for column in range(len(heads))]
    lines = []
    for line in [heads, *body]:
        *numbers, text = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        lines.append("  ".join([*numbers, text.strip()]))
    return "\n".join(lines)


def write_json(file: Path, about: dict[str, Any], lines: Sequence[Line], rows: Sequence[Row]) -> None:
    """Write the job, every step and the scaling table to a JSON file."""
    steps = [asdict(line) for line in lines]
    tree = {**about, "steps": steps, "scaling": [asdict(row) for row in rows]}
    file.write_text(json.dumps(_finite(tree), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def draw_chart(file: Path, title: str, lines: Sequence[Line], rows: Sequence[Row]) -> None:
    """Write one image with the loss, the scaling, and where the time of a step goes."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # slow to import, not needed for --help

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _draw_loss(axes[0][0], lines)
    _draw_efficiency(axes[0][1], rows)
    _draw_parts(axes[1][0], rows)
    _draw_communication(axes[1][1], rows)
    figure.savefig(file, dpi=110)


def _draw_loss(axis: Any, lines: Sequence[Line]) -> None:
    axis.plot([line.now_s for line in lines], [line.loss for line in lines])
    axis.set(title="loss", xlabel="modelled time (s)")


def _draw_efficiency(axis: Any, rows: Sequence[Row]) -> None:
    axis.plot([row.ranks for row in rows], [100 * row.efficiency for row in rows], "o-", label="same work per rank")
    split = [row for row in rows if row.shared_efficiency is not None]
    axis.plot([r.ranks for r in split], [100 * (r.shared_efficiency or 0) for r in split], "s--", label="same batch")
    _label_ranks(axis, rows)
    axis.set(title="scaling efficiency against 1 rank (%)", ylim=(0, 105))
    axis.legend()


def _draw_parts(axis: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    names = [name for name in rows[0].parts if any(row.parts[name] > _MIN_SHARE * row.step_s for row in rows)]
    below = [0.0] * len(rows)
    for name in names:
        heights = [1e3 * row.parts[name] for row in rows]
        axis.bar(places, heights, bottom=below, label=PART_LABELS.get(name, name))
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axis.set(title="where a step goes (ms)", xlabel="ranks")
    axis.set_xticks(places, [str(row.ranks) for row in rows])
    axis.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)


def _draw_communication(axis: Any, rows: Sequence[Row]) -> None:
    ranks = [row.ranks for row in rows]
    axis.plot(ranks, [1e3 * row.exposed_s for row in rows], "o-", label="exposed")
    axis.plot(ranks, [1e3 * row.hidden_s for row in rows], "s--", label="hidden behind work")
    axis.plot(ranks, [1e3 * row.wait_s for row in rows], "^:", label="waiting for the slowest")
    _label_ranks(axis, rows)
    axis.set(title="communication (ms a step)")
    axis.legend()


def _label_ranks(axis: Any, rows: Sequence[Row]) -> None:
    axis.set_xscale("log", base=4)
    axis.set_xticks([row.ranks for row in rows], [str(row.ranks) for row in rows])
    axis.minorticks_off()
    axis.set_xlabel("ranks")


def _finite(value: Any) -> Any:
    """Replace infinite and NaN values, such as the loss of a diverged run, by None: JSON cannot express them."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
