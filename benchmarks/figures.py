"""A figure: what was measured, the reference it is held against in the same run, and the bound it must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from trainer.table import table

# How much a further node may cost more in a larger cluster than in a smaller one before that counts as growth.
SLOPE_TOLERANCE = 1.15


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str = "s"
    reference: str = ""
    at_most: float | None = None

    @property
    def verdict(self) -> str:
        if self.at_most is None:
            return ""
        return "pass" if self.value <= self.at_most else "FAIL"


@dataclass(frozen=True)
class Shape:
    """Seconds of one cluster size: the floor, from `up` to the first srun, `up` to its end, `up` again, teardown."""

    nodes: int
    floor: float
    srun: float
    up: float
    again: float
    teardown: float


def main_figures(shape: Shape) -> list[Figure]:
    floor = f"floor {shape.floor:.1f} s"
    return [
        Figure("floor: the same containers and daemons by hand", shape.floor),
        Figure(f"up to the first srun across {shape.nodes} nodes", shape.srun, reference=floor, at_most=30),
        Figure("up to the first srun, times the floor", shape.srun / shape.floor, "x", floor, 2.5),
        Figure("up to ready: torch has all-reduced on every node", shape.up, reference=floor, at_most=30),
        Figure("second up without changes", shape.again, reference=f"first up {shape.up:.1f} s", at_most=10),
        Figure("teardown", shape.teardown, reference=f"up {shape.up:.1f} s", at_most=15),
    ]


def growth_figures(shapes: Sequence[Shape]) -> list[Figure]:
    """What each further node costs, between one size and the next: it must not rise with the size of the cluster.

    The fixed cost of a bring-up is in no slope, so that it cannot hide a rise.
    """
    ordered = sorted(shapes, key=lambda s: s.nodes)
    figures = [Figure(f"{s.nodes} nodes, up times the floor", s.up / s.floor, "x", _of(s)) for s in ordered]
    slopes = [(a, b, (b.up - a.up) / (b.nodes - a.nodes)) for a, b in pairwise(ordered)]
    for number, (a, b, slope) in enumerate(slopes):
        name = f"each node from {a.nodes} to {b.nodes}"
        if number == 0:
            figures.append(Figure(name, slope, "s/node", f"up {a.up:.1f} s to {b.up:.1f} s"))
            continue
        before = slopes[number - 1][2]
        reference = f"{before:.2f} s/node before, {SLOPE_TOLERANCE - 1:.0%} tolerance"
        figures.append(Figure(name, slope, "s/node", reference, round(before * SLOPE_TOLERANCE, 3)))
    return figures


def cold_figures(phases: Mapping[str, Mapping[str, Any]], warm_s: float) -> list[Figure]:
    """A sum, not a stopwatch: each phase of the last set-up as it recorded itself, and a warm bring-up on top."""
    took = {name: float(phase["seconds"]) for name, phase in phases.items()}
    total = sum(took.values()) + warm_s
    shares = [Figure(f"set-up: {name}", s, reference=f"{s / total:.0%} of {total:.0f} s") for name, s in took.items()]
    shares.append(Figure("warm up", warm_s, reference=f"{warm_s / total:.0%} of {total:.0f} s"))
    return [*shares, Figure("recorded set-up phases plus warm up", total, reference="their sum", at_most=1200)]


def middle(shapes: Sequence[Shape]) -> Shape:
    """Of repeated runs, the median of each part."""
    parts = {key: median(asdict(s)[key] for s in shapes) for key in ("floor", "srun", "up", "again", "teardown")}
    return Shape(nodes=shapes[0].nodes, **parts)


def report(figures: Sequence[Figure]) -> str:
    rows = [
        (
            f.name,
            f"{f.value:.2f} {f.unit}",
            f.reference,
            "" if f.at_most is None else f"<= {f.at_most:g} {f.unit}",
            f.verdict,
        )
        for f in figures
    ]
    return table(("figure", "measured", "reference", "bound", "verdict"), rows)


def _of(shape: Shape) -> str:
    return f"up {shape.up:.1f} s, floor {shape.floor:.1f} s"
