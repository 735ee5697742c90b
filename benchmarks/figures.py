"""A figure: what was measured, the reference it is held against in the same run, and the bound it must keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from trainer.table import table


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
    """Against linear growth from the smallest size: above 1 the time per node grows with the cluster."""
    first, *rest = sorted(shapes, key=lambda s: s.nodes)
    figures = [Figure(f"{first.nodes} nodes, per node", first.up / first.nodes, reference=_of(first))]
    for shape in rest:
        linear = first.up / first.nodes * shape.nodes
        figures.append(Figure(f"{shape.nodes} nodes, per node", shape.up / shape.nodes, reference=_of(shape)))
        figures.append(
            Figure(f"{shape.nodes} nodes, times linear", shape.up / linear, "x", f"linear {linear:.1f} s", at_most=1)
        )
    return figures


def cold_figures(phases: Mapping[str, Mapping[str, Any]], warm_s: float) -> list[Figure]:
    """A fresh machine: what each phase of set-up took when it last really ran, and the warm bring-up on top."""
    took = {name: float(phase["seconds"]) for name, phase in phases.items()}
    total = sum(took.values()) + warm_s
    shares = [Figure(f"cold: {name}", s, reference=f"{s / total:.0%} of {total:.0f} s") for name, s in took.items()]
    shares.append(Figure("cold: up", warm_s, reference=f"{warm_s / total:.0%} of {total:.0f} s"))
    return [*shares, Figure("cold make demo", total, reference="sum of the phases", at_most=1200)]


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
