"""Every way NCCL could run a collective on a fabric: when it starts to deliver, and how fast it then is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log2

from simulator.collectives.fabric import Fabric
from simulator.collectives.group import Op
from simulator.collectives.nccl import (
    BASE_US,
    LL_MOST_GB_S,
    LL_MOST_GB_S_ACROSS,
    PAT_SHARE,
    PROTOCOLS,
    RING_SHARE,
    STEP_US,
    TREE_LL128_SHARE,
    TREE_LL_SHARE,
    Algorithm,
    Protocol,
)

US_PER_GB_S = 1e-3
"""Microseconds that a byte takes at one GB/s."""
PEER_US = 0.7
"""Each further peer of an all-to-all: one more pair of connections to serve."""
MANY = 3
LAUNCH_US = 5.0
"""Of a collective from the host, beyond what NCCL's table counts."""
NVLS_TREE_SHARE = 0.94
"""Of what the switch reaches alone, when it also feeds the network."""
MANY_TREE_SHARE = 0.85
"""Of the network's rate in a tree over three nodes or more: nodes in it have two children."""


@dataclass(frozen=True)
class Candidate:
    algorithm: Algorithm
    protocol: Protocol
    start_us: float
    us_per_byte: float
    mix: float = 1.0

    def time_us(self, size: float) -> float:
        moved = size * self.us_per_byte
        if self.mix == 1.0:
            return self.start_us + moved
        return float((self.start_us**self.mix + moved**self.mix) ** (1 / self.mix))


def candidates(op: Op, fabric: Fabric) -> tuple[Candidate, ...]:
    if op == "send":
        return tuple(_send(fabric))
    if op == "all_to_all":
        return tuple(_all_to_all(fabric))
    ways = [*_rings(op, fabric)]
    if op == "all_reduce":
        ways += [*_trees(fabric), *_switched(fabric)]
    elif fabric.per_node == 1:
        ways += [_pat(fabric)]
    return tuple(ways)


def _rings(op: Op, fabric: Fabric) -> Iterator[Candidate]:
    ranks = fabric.nodes * fabric.per_node
    rounds = 2 if op == "all_reduce" else 1
    across = rounds * (fabric.nodes - 1)
    inside = rounds * (ranks - 1) - across
    # One GPU per node: nothing hides the network, NCCL then counts as in a tree.
    net = STEP_US["net"]["tree" if fabric.per_node == 1 else "ring"]
    for protocol in PROTOCOLS:
        step = STEP_US[fabric.inside]["ring"][protocol]
        if fabric.nodes > 1:
            step = max(step, fabric.overhead_us * (3 if protocol == "Simple" else 1))
        start = LAUNCH_US + BASE_US["ring"][protocol] + inside * step + across * (net[protocol] + fabric.hop_us)
        rate = RING_SHARE[protocol] * _narrowest(fabric)
        if protocol == "LL":
            rate = min(rate, _ll_most(fabric))
        cost = rounds * (ranks - 1) / ranks * US_PER_GB_S / rate
        yield Candidate("ring", protocol, start, cost, fabric.ring if fabric.nodes > 1 else _mix(fabric, protocol))


def _trees(fabric: Fabric) -> Iterator[Candidate]:
    hops = _tree_hops(fabric)
    for protocol in PROTOCOLS:
        inside = (fabric.per_node - 1) * STEP_US[fabric.inside]["tree"][protocol]
        across = hops * (STEP_US["net"]["tree"][protocol] + fabric.hop_us)
        start = LAUNCH_US + BASE_US["tree"][protocol] + 2 * (inside + across)
        rate = fabric.ring_gb_s / 2 if fabric.per_node > 1 else float("inf")
        rate = min(rate, fabric.net_gb_s / _tree_loads(fabric)) if fabric.nodes > 1 else rate
        if protocol == "LL":
            rate = min(rate * TREE_LL_SHARE, _ll_most(fabric) / 2)
        if protocol == "LL128":
            rate *= TREE_LL128_SHARE["one" if fabric.nodes == 1 else "more"]
        yield Candidate("tree", protocol, start, US_PER_GB_S / rate, fabric.tree if fabric.nodes > 1 else _mix(fabric, protocol))


def _switched(fabric: Fabric) -> Iterator[Candidate]:
    if not fabric.nvls_gb_s:
        return
    start = LAUNCH_US + STEP_US["nvlink"]["nvls"]["Simple"]
    if fabric.nodes == 1:
        yield Candidate("nvls", "Simple", start, US_PER_GB_S / fabric.nvls_gb_s, fabric.mix)
        return
    start += 2 * _tree_hops(fabric) * (STEP_US["net"]["nvls_tree"]["Simple"] + fabric.hop_us)
    rate = min(NVLS_TREE_SHARE * fabric.nvls_gb_s, fabric.net_gb_s / _tree_loads(fabric))
    yield Candidate("nvls_tree", "Simple", start, US_PER_GB_S / rate, fabric.tree)


def _pat(fabric: Fabric) -> Candidate:
    hop = STEP_US["net"]["pat"]["Simple"] + fabric.hop_us
    start = LAUNCH_US + BASE_US["pat"]["Simple"] + _tree_hops(fabric) * hop / 3.5 + 2.8 * fabric.nodes
    share = (fabric.nodes - 1) / fabric.nodes / PAT_SHARE
    return Candidate("pat", "Simple", start, share * US_PER_GB_S / fabric.net_gb_s, fabric.tree)


def _all_to_all(fabric: Fabric) -> Iterator[Candidate]:
    ranks = fabric.nodes * fabric.per_node
    outside = ranks - fabric.per_node
    near = (fabric.per_node - 1) / ranks / fabric.ring_gb_s
    far = fabric.per_node * outside / ranks / fabric.net_gb_s if outside else 0.0
    for protocol in ("LL", "Simple"):
        hop = STEP_US["net"]["tree"][protocol] + fabric.hop_us if outside else STEP_US[fabric.inside]["ring"][protocol]
        start = LAUNCH_US + BASE_US["ring"][protocol] + hop + PEER_US * (ranks - 1)
        cost = max(near, far) * US_PER_GB_S / RING_SHARE[protocol]
        yield Candidate("direct", protocol, start, cost, fabric.ring if outside else 1.0)


def _send(fabric: Fabric) -> Iterator[Candidate]:
    across = fabric.nodes > 1
    rate = fabric.net_gb_s if across else fabric.ring_gb_s
    for protocol in ("LL", "Simple"):
        hop = STEP_US["net"]["tree"][protocol] + fabric.hop_us if across else STEP_US[fabric.inside]["ring"][protocol]
        cost = US_PER_GB_S / rate / RING_SHARE[protocol]
        yield Candidate("direct", protocol, LAUNCH_US + BASE_US["ring"][protocol] + hop, cost)


def _mix(fabric: Fabric, protocol: Protocol) -> float:
    """LL and LL128 send a flag with every line: nothing waits for a chunk."""
    return fabric.mix if protocol == "Simple" else 1.0


def _narrowest(fabric: Fabric) -> float:
    rates = [fabric.ring_gb_s] if fabric.per_node > 1 else []
    return min([*rates, fabric.net_gb_s] if fabric.nodes > 1 else rates)


def _tree_hops(fabric: Fabric) -> int:
    return ceil(log2(fabric.nodes))


def _tree_loads(fabric: Fabric) -> float:
    """Arrays that cross a node's cards in one direction: two nodes halve the work of the two trees, more do not."""
    return 1.0 if fabric.nodes < MANY else 2 / MANY_TREE_SHARE


def _ll_most(fabric: Fabric) -> float:
    if fabric.nodes == 1:
        return LL_MOST_GB_S.get(fabric.generation, LL_MOST_GB_S["volta"])
    return LL_MOST_GB_S_ACROSS[min(fabric.nodes, MANY)]
