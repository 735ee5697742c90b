"""What an emulated run leaves: a line per step, a table, and a JSON file with all of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulator.emulate.clock import Tick
from simulator.emulate.scaling import Row


@dataclass(frozen=True)
class Line:
    """One step: what was learned, and what the clock says of it."""

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
        words = [
            f"step {self.step:>{len(str(steps))}}/{steps}",
            f"loss {self.loss:.4f}",
            f"{_time(tick.step_s)} a step",
            f"{self.units_per_s:,.0f} {unit}/s",
            f"communication {tick.exposed_s / tick.step_s:.1%}",
            f"efficiency {self.efficiency:.1%}",
        ]
        return "  ".join(words)


def table(rows: Sequence[Row], unit: str) -> str:
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
        *numbers, words = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        lines.append("  ".join([*numbers, words.strip()]))
    return "\n".join(lines)


def write(file: Path, about: dict[str, Any], lines: Sequence[Line], rows: Sequence[Row]) -> None:
    steps = [asdict(line) for line in lines]
    tree = {**about, "steps": steps, "scaling": [asdict(row) for row in rows]}
    file.write_text(json.dumps(_finite(tree), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no word for the loss of a run that diverged."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
