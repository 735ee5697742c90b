"""Which nodes are to be taken away after a fabric job, and why; or why none of them can be blamed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm.fabric.pairs import FEWEST, SLOW, Pair, slow_nodes, usual
from slurm.fabric.verdict import TOLERANCE, Finding, Wanted, size_to_judge


@dataclass(frozen=True)
class Measured:
    """A pair of nodes: GB/s of bus bandwidth by message size; none where they did not get through to each other."""

    nodes: Pair
    busbw: Mapping[int, float]

    @property
    def fastest(self) -> float:
        return max(self.busbw.values(), default=0.0)

    def expected(self, wanted: Wanted) -> float | None:
        """What such machines should reach; None where nobody has measured them."""
        size = size_to_judge(self.busbw, wanted)
        return wanted.busbw[size] if size else None

    def speed(self, wanted: Wanted) -> float:
        """At the size that can be compared."""
        size = size_to_judge(self.busbw, wanted)
        return self.busbw[size] if size else self.fastest


@dataclass(frozen=True)
class Below:
    reasons: Mapping[str, str] = field(default_factory=dict)
    """By node, each for itself to be taken away."""
    unclear: str = ""
    """Something is wrong, and it cannot be said with which node."""


def below(findings: Sequence[Finding], pairs: Sequence[Measured], wanted: Wanted) -> Below:
    nodes = list(dict.fromkeys(node for pair in pairs for node in pair.nodes))
    slow = slow_pairs(pairs, wanted)
    named = slow_nodes({pair.nodes: pair in slow for pair in pairs})
    reasons = {node: _slow(node, pairs, wanted) for node in named} | {
        one.node: one.text for one in findings if one.node
    }
    if len(reasons) * 2 > len(nodes):
        return Below(
            unclear=f"{len(reasons)} of {len(nodes)} nodes are below ({', '.join(reasons)}): no fault of single nodes; "
            "look at what they have in common, such as driver, plugin, image and job environment"
        )
    if reasons:
        return Below(reasons)
    if slow and len(nodes) < FEWEST:
        return Below(unclear=f"{' or '.join(nodes)} is slow: two nodes cannot tell which; measure them with a third")
    between = [f"{' and '.join(pair.nodes)} are slow with each other, not with others" for pair in slow]
    return Below(unclear="; ".join([*map(str, findings), *between]))


def slow_pairs(pairs: Sequence[Measured], wanted: Wanted) -> list[Measured]:
    return [pair for pair in pairs if _is_slow(pair, pairs, wanted)]


def _is_slow(pair: Measured, pairs: Sequence[Measured], wanted: Wanted) -> bool:
    """Than the others, or than the machine should be."""
    speed, expected = pair.speed(wanted), pair.expected(wanted)
    if expected is not None and speed < TOLERANCE * expected:
        return True
    return speed < SLOW[wanted.fabric] * usual({one.nodes: one.speed(wanted) for one in pairs})


def _slow(node: str, pairs: Sequence[Measured], wanted: Wanted) -> str:
    best = max(pair.speed(wanted) for pair in pairs if node in pair.nodes)
    reach = usual({pair.nodes: pair.speed(wanted) for pair in pairs})
    return f"{best:.2f} GB/s at best with its neighbours, others reach {reach:.2f}"
