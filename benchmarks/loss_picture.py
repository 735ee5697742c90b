"""Draw the loss curves that benchmarks/loss_curves.py has written; needs matplotlib, but neither torch nor a GPU.

python -m benchmarks.loss_picture FILE ... --out loss-curves.svg
"""

from __future__ import annotations

import argparse
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.loss_figures import REFERENCE, read_runs
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
    curves: dict[str, list[float]] = {}
    for path in options.files:
        for preset, ways in read_runs(path).items():
            curves |= {f"{preset}, {way}": run.losses for way, run in ways.items()}
    options.out.write_text(draw_curves(curves))
    return 0


def draw_curves(curves: dict[str, list[float]]) -> str:
    """Return a picture of the running means as SVG."""

    def draw(figure: Any) -> str:
        axes = add_axes(figure, "loss, running mean")
        for (name, losses), colour in zip(curves.items(), cycle(COLOURS), strict=False):
            steps = range(1, len(losses) + 1)
            style = "--" if REFERENCE in name else "-"
            axes.plot(steps[_FIRST_STEP:], smooth(losses)[_FIRST_STEP:], style, color=colour, label=name, linewidth=1.2)
        legend_above(axes)
        return ""

    picture = draw_picture("loss-curves", "Loss of presets and of their references", draw)
    if picture is None:
        raise SystemExit("there are no curves")
    return picture.svg


if __name__ == "__main__":
    sys.exit(main())
