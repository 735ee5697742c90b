"""Tables and bounds of benchmarks.collectives, from the times of its pairs, for one message size after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import get_args

from benchmarks.figures import Figure
from simulator.collectives.patterns import Machine, Pattern, predict_seconds
from trainer.bandwidth import format_size
from trainer.table import Cell, table

RANKS, RANKS_PER_NODE = 4, 2
RING_SHARE = 2 * (RANKS - 1) / RANKS
"""What a rank sends in a ring, in multiples of the tensor."""
RING, HIERARCHICAL, CHECKED = "ring", "hierarchical", "hierarchical, checked"
PATTERNS = (RING, "halving_doubling", "tree", HIERARCHICAL, CHECKED)
BOUNDED = (RING, HIERARCHICAL)
ONE_MACHINE_MOST, SLOW_LINK_MOST = 1.11, 0.83
_FULL_ROUNDS_BYTES, _MOST_ROUNDS = 64 << 20, 101


@dataclass(frozen=True)
class Pair:
    """The seconds of a pattern, and those of torch's all-reduce right before or after it."""

    ours: float
    torch: float
    ours_processor: float
    """Seconds of processor time of all threads of all ranks."""
    torch_processor: float


@dataclass(frozen=True)
class Times:
    """What was measured for one message size, in seconds."""

    plain: Sequence[float]
    step: Sequence[float]
    pairs: Mapping[str, Sequence[Pair]]
    """The pairs of each pattern, one for each round."""

    @property
    def torch(self) -> float:
        """The median time of torch's all-reduce, over all pairs."""
        return median(pair.torch for pairs in self.pairs.values() for pair in pairs)

    @property
    def torch_processor(self) -> float:
        """The median processor time of torch's all-reduce, over all pairs."""
        return median(pair.torch_processor for pairs in self.pairs.values() for pair in pairs)


def count_rounds(size: int, rounds: int, mbit: int | None) -> int:
    """Return the rounds for a message size: on one machine, small messages vary most, and many of them take no time."""
    return rounds if mbit else max(rounds, min(_MOST_ROUNDS, rounds * _FULL_ROUNDS_BYTES // size))


def format_times(size: int, times: Times, mbit: int | None) -> str:
    """Return a table with the median times of each pattern, its predicted time, and how fast it is beside torch."""
    machine = describe_machine(size, times, mbit)
    predicted = {
        pattern: f"{predict_seconds(pattern, size, RANKS, RANKS_PER_NODE, machine) * 1e3:.2f}"
        for pattern in get_args(Pattern)
    }
    rows: list[tuple[Cell, ...]] = [
        (format_size(size), "plain", median(times.plain) * 1e3, "", "", ""),
        (format_size(size), "torch", times.torch * 1e3, predicted[RING], times.torch_processor * 1e3, ""),
    ]
    for name, pairs in times.pairs.items():
        speed = describe_ratios([pair.torch / pair.ours for pair in pairs])
        time_ms = median(pair.ours for pair in pairs) * 1e3
        processor_ms = median(pair.ours_processor for pair in pairs) * 1e3
        rows.append((format_size(size), name, time_ms, predicted.get(name, ""), processor_ms, speed))
    return table(("size", "pattern", "time ms", "predicted ms", "processor ms", "torch's time / ours"), rows)


def describe_ratios(ratios: Sequence[float]) -> str:
    """Return the median, the middle half, and the smallest and largest of ratios."""
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    spread = f"middle half {low:.2f} to {high:.2f}, all {min(ratios):.2f} to {max(ratios):.2f}"
    return f"{middle:.2f} ({spread}, {len(ratios)} pairs)"


def describe_machine(size: int, times: Times, mbit: int | None) -> Machine:
    """Return the rates of a node that plain messages of the same run have.

    Two ranks of a node share the processors with the other node, or with the two other ranks, in the same way.
    """
    node_gb_s = RANKS_PER_NODE * RING_SHARE * size / median(times.plain) / 1e9
    return Machine(node_gb_s, median(times.step) * 1e6, mbit / 8e3 if mbit else float("inf"))


def list_figures(times_by_size: Mapping[int, Times], mbit: int | None) -> list[Figure]:
    """Return the figures that have bounds."""
    figures = []
    for size, times in times_by_size.items():
        ratios = {
            name: [pair.ours / pair.torch for pair in pairs]
            for name, pairs in times.pairs.items()
            if name in ((HIERARCHICAL,) if mbit else BOUNDED)
        }
        if not ratios:
            continue
        best = min(ratios, key=lambda name: median(ratios[name]))
        bound = SLOW_LINK_MOST if mbit and size == max(times_by_size) else None if mbit else ONE_MACHINE_MOST
        low, middle, high = quantiles(ratios[best], n=4, method="inclusive")
        reference = f"torch {times.torch * 1e3:.1f} ms, middle half {low:.2f} to {high:.2f}, {len(ratios[best])} pairs"
        figures.append(Figure(f"{format_size(size)}: {best}, times torch's time", middle, "x", reference, bound))
    return figures
