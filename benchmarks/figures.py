"""Figures of the benchmarks: a measured value, its reference from the same run, and its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from trainer.table import table

# Allowed growth of the ratio to the floor from the smallest cluster to a larger one.
TOLERANCE = 1.15


@dataclass(frozen=True)
class Figure:
    """A measured value with its unit, reference and upper bound."""

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
    """Seconds for one cluster size: the floor, `up` to the first srun, all of `up`, a second `up`, teardown."""

    nodes: int
    floor: float
    srun: float
    up: float
    again: float
    teardown: float


def main_figures(shape: Shape) -> list[Figure]:
    """Return the bounded figures of the smallest cluster."""
    floor = f"floor {shape.floor:.1f} s"
    return [
        Figure("floor: the same containers and daemons by hand", shape.floor),
        Figure(f"up to the first srun across {shape.nodes} nodes", shape.srun, reference=floor, at_most=30),
        Figure("up to the first srun, times the floor", shape.srun / shape.floor, "x", floor, 2.5),
        Figure("up to ready: torch has all-reduced on every node", shape.up, reference=floor, at_most=30),
        Figure("second up without changes", shape.again, reference=f"first up {shape.up:.1f} s", at_most=5),
        Figure("teardown", shape.teardown, reference=f"up {shape.up:.1f} s", at_most=15),
    ]


def growth_figures(shapes: Sequence[Shape]) -> list[Figure]:
    """Return figures that bound growth: neither seconds per node nor the ratio to the floor may rise with size.

    The floor starts the same containers on the same cores, so it contains the machine's own slowdown at size. The cost
    of each further node has no bound because it excludes the fixed cost of a bring-up.
    """
    ordered = sorted(shapes, key=lambda s: s.nodes)
    figures = [Figure(f"{ordered[0].nodes} nodes, up times the floor", *_times_floor(ordered[0]))]
    for small, large in pairwise(ordered):
        slope = (large.up - small.up) / (large.nodes - small.nodes)
        reference = f"{small.nodes} nodes: {small.up / small.nodes:.2f} s/node"
        bound = round(small.up / small.nodes, 2)
        figures += [
            Figure(f"{large.nodes} nodes, up per node", large.up / large.nodes, "s/node", reference, bound),
            Figure(
                f"{large.nodes} nodes, up times the floor",
                *_times_floor(large),
                round(_ratio(ordered[0]) * TOLERANCE, 2),
            ),
            Figure(
                f"each node from {small.nodes} to {large.nodes}",
                slope,
                "s/node",
                f"floor {_floor_slope(small, large):.2f} s/node",
            ),
        ]
    return figures


def cold_figures(record: Mapping[str, Any], warm_s: float) -> list[Figure]:
    """Return the wall time of the recorded set-up plus a warm bring-up, and how long each phase of set-up took.

    The phases run concurrently: their sum exceeds the wall time.
    """
    total = float(record["seconds"]) + warm_s
    phases = [Figure(f"set-up: {name}", float(phase["seconds"])) for name, phase in record["phases"].items()]
    parts = [Figure("set-up, wall time", float(record["seconds"])), Figure("warm up", warm_s)]
    return [*phases, *parts, Figure("recorded set-up plus warm up", total, reference="their sum", at_most=720)]


def middle(shapes: Sequence[Shape]) -> Shape:
    """Return the median of each part over repeated runs."""
    parts = {key: median(asdict(s)[key] for s in shapes) for key in ("floor", "srun", "up", "again", "teardown")}
    return Shape(nodes=shapes[0].nodes, **parts)


def report(figures: Sequence[Figure]) -> str:
    """Return the figures as a table."""
    rows = [
        (
            f.name,
            f"{f.value:.2f} {f.unit}" if f.unit else f"{f.value:g}",
            f.reference,
            "" if f.at_most is None else f"<= {f.at_most:g} {f.unit}".rstrip(),
            f.verdict,
        )
        for f in figures
    ]
    return table(("figure", "measured", "reference", "bound", "verdict"), rows)


def _times_floor(shape: Shape) -> tuple[float, str, str]:
    return _ratio(shape), "x", f"up {shape.up:.1f} s, floor {shape.floor:.1f} s"


def _ratio(shape: Shape) -> float:
    return shape.up / shape.floor


def _floor_slope(small: Shape, large: Shape) -> float:
    return (large.floor - small.floor) / (large.nodes - small.nodes)
