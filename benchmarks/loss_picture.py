"""Draw the loss curves that benchmarks/loss_curves.py has written; needs matplotlib, but neither torch nor a GPU.

python -m benchmarks.loss_picture FILE ... --out loss-curves.svg
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.loss_figures import REFERENCE, Run, read_runs
from trainer.report.axes import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, add_axes, legend_above
from trainer.report.curve import smooth
from trainer.report.picture import draw_picture

COLOURS = (ORANGE, BLUE, PURPLE, RED, GREEN, SKY)
# The first steps would hide the differences.
_FIRST_STEP = 50


def main() -> int:
    """Draw the curves of all files in one picture."""
    parser = argparse.ArgumentParser("python -m benchmarks.loss_picture")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by benchmarks.loss_curves --json")
    parser.add_argument("--out", type=Path, default=Path("loss-curves.svg"))
    options = parser.parse_args()
    runs: dict[str, dict[str, Run]] = {}
    for path in options.files:
        runs |= read_runs(path)
    options.out.write_text(draw_runs(runs))
    return 0


def draw_runs(runs: Mapping[str, Mapping[str, Run]]) -> str:
    """Return a picture of the running means as SVG: a colour for each way to compute, and a group for each preset."""
    ways = list(dict.fromkeys(way for preset in runs.values() for way in preset))
    colours = dict(zip(ways, cycle(COLOURS), strict=False))

    def draw(figure: Any) -> str:
        axes = add_axes(figure, "loss, running mean")
        labels = set(ways)
        for preset, of_preset in runs.items():
            for way, run in of_preset.items():
                steps, means = range(1, len(run.losses) + 1)[_FIRST_STEP:], smooth(run.losses)[_FIRST_STEP:]
                style = "--" if way.startswith(REFERENCE) else "-"
                # A way is in the legend once, even if several presets have it.
                label = way if way in labels else None
                labels.discard(way)
                axes.plot(steps, means, style, color=colours[way], label=label, linewidth=1.2)
            first = next(iter(of_preset.values()))
            middle = len(first.losses) // 2
            axes.annotate(preset, (middle, smooth(first.losses)[middle]), xytext=(0, 8), textcoords="offset points")
        legend_above(axes)
        return ""

    picture = draw_picture("loss-curves", "Loss of presets and of their references", draw)
    if picture is None:
        raise SystemExit("there are no curves")
    return picture.svg


if __name__ == "__main__":
    sys.exit(main())
