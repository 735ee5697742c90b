"""Find slow nodes by measuring pairs: every node is paired with two others, and is slow if all its pairs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm.fabric.verdict import TOLERANCE, ExpectedFabric, Finding, choose_size

Pair = tuple[str, str]
# A pair is slow below this share of the best quarter of the pairs; one bad node slows two pairs.
# Over TCP, speed also depends on the nodes' processors and their other load.
SLOW_SHARE = {"efa": 0.85, "infiniband": 0.85, "roce": 0.85, "tcp": 0.5}
MIN_NODES = 3
"""Smallest number of nodes with which a slow node can be identified."""
_QUARTER = 4


@dataclass(frozen=True)
class PairSpeed:
    """The measurement of two nodes."""

    nodes: Pair
    busbw: Mapping[int, float]
    """Bus bandwidth in GB/s by message size in bytes; empty if the nodes could not connect."""

    @property
    def fastest(self) -> float:
        return max(self.busbw.values(), default=0.0)

    def expected(self, expected: ExpectedFabric) -> float | None:
        """Return the expected speed of these machines in GB/s; None if there is no figure for them."""
        size = choose_size(self.busbw, expected)
        return expected.busbw[size] if size else None

    def speed(self, expected: ExpectedFabric) -> float:
        """Return the speed in GB/s at the message size for which there is an expected figure, else the fastest."""
        size = choose_size(self.busbw, expected)
        return self.busbw[size] if size else self.fastest


@dataclass(frozen=True)
class Blame:
    """The nodes to drain."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reason to drain each node."""
    unclear: str = ""
    """The problem, if no single node can be blamed for it."""


def plan_rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return pairs of neighbours on a ring, in rounds whose pairs share no node and can run at the same time."""
    if len(nodes) < MIN_NODES:
        return [[(nodes[0], nodes[1])]] if len(nodes) == MIN_NODES - 1 else []
    # The nodes of a pair are in their overall order, because Slurm numbers them in that order.
    ring = [*zip(nodes, nodes[1:]), (nodes[0], nodes[-1])]  # noqa: B905, RUF007  # The node's own Python may be 3.9.
    even, odd = ring[0 : len(nodes) - len(nodes) % 2 : 2], ring[1::2]
    # With an odd number of nodes the last pair of the ring shares nodes with both rounds.
    last = [ring[-1]] if len(nodes) % 2 else []
    return [pairs for pairs in (even, odd, last) if pairs]


def list_slow_pairs(pairs: Sequence[PairSpeed], expected: ExpectedFabric) -> list[PairSpeed]:
    """Return the pairs that are slower than the others, or than expected of the machine."""
    usual = _usual_speed(pairs, expected) if pairs else 0.0
    return [pair for pair in pairs if _is_slow(pair, usual, expected)]


def blame_nodes(findings: Sequence[Finding], pairs: Sequence[PairSpeed], expected: ExpectedFabric) -> Blame:
    """Return the nodes to drain after a fabric job, or why none of them can be blamed."""
    nodes = list(dict.fromkeys(node for pair in pairs for node in pair.nodes))
    slow = list_slow_pairs(pairs, expected)
    reasons = {node: _describe_slow(node, pairs, expected) for node in _list_slow_nodes(nodes, pairs, slow)} | {
        finding.node: finding.text for finding in findings if finding.node
    }
    if len(reasons) * 2 > len(nodes):
        return Blame(
            unclear=f"{len(reasons)} of {len(nodes)} nodes have problems ({', '.join(reasons)}), so no single "
            "node is at fault; check what they have in common, such as driver, plugin, image and job environment"
        )
    if reasons:
        return Blame(reasons)
    if slow and len(nodes) < MIN_NODES:
        return Blame(unclear=f"{' or '.join(nodes)} is slow: two nodes do not show which; measure them with a third")
    between = [f"{' and '.join(pair.nodes)} are slow with each other, not with others" for pair in slow]
    return Blame(unclear="; ".join([*map(str, findings), *between]))


def _list_slow_nodes(nodes: Sequence[str], pairs: Sequence[PairSpeed], slow: Sequence[PairSpeed]) -> list[str]:
    """Return the nodes all of whose pairs are slow; a single pair does not show which of its nodes is slow."""
    if len(nodes) < MIN_NODES:
        return []
    slow_ids = {id(pair) for pair in slow}
    fast = {node for pair in pairs if id(pair) not in slow_ids for node in pair.nodes}
    return [node for node in nodes if node not in fast]


def _is_slow(pair: PairSpeed, usual: float, expected: ExpectedFabric) -> bool:
    speed, target = pair.speed(expected), pair.expected(expected)
    if target is not None and speed < TOLERANCE * target:
        return True
    # Without NCCL, the pairs are measured over TCP whatever the fabric is.
    return speed < SLOW_SHARE[expected.fabric if expected.nccl else "tcp"] * usual


def _usual_speed(pairs: Sequence[PairSpeed], expected: ExpectedFabric) -> float:
    """Return the speed that the best quarter of the pairs reach, in GB/s."""
    return sorted((pair.speed(expected) for pair in pairs), reverse=True)[len(pairs) // _QUARTER]


def _describe_slow(node: str, pairs: Sequence[PairSpeed], expected: ExpectedFabric) -> str:
    best = max(pair.speed(expected) for pair in pairs if node in pair.nodes)
    return f"{best:.2f} GB/s at best with its neighbours, others reach {_usual_speed(pairs, expected):.2f}"
