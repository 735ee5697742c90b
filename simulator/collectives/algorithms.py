"""Every way NCCL could run a collective on a fabric: when it starts to deliver, and how fast it then is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil, log2

from simulator.collectives.constants import ADDITIVE, Constants, LatencyMix, load_fitted_constants
from simulator.collectives.fabric import Fabric, build_fabric
from simulator.collectives.group import Group, Op
from simulator.collectives.nccl import (
    BASE_US,
    CHANNELS,
    LL_MOST_GB_S,
    LL_MOST_GB_S_ACROSS,
    LL_SHARE,
    NET_OVERHEAD_US,
    PAT_SHARE,
    PROTOCOLS,
    SEND_CHANNELS,
    SEND_PART,
    STEP_US,
    TREE_LL_SHARE,
    TREE_MOST_GB_S,
    Algorithm,
    Protocol,
)
from simulator.hardware.system import System

US_PER_GB_S = 1e-3
"""Microseconds that a byte takes at one GB/s."""
PEER_US = 0.7
"""Each further peer of an all-to-all in the node: one more pair of connections to serve."""
SEND_GB_S = 22.0
"""Of one channel inside a node: so fast a block of threads copies."""
SEND_NET_MOST_GB_S = 25.0
"""Of one message between nodes: it has two channels, whatever the cards could do."""
MANY = 3
NODE_GPUS = 8
NVLS_FAR_US = 1.5
"""Of each GPU in a rack beyond those of a node, when the switches add up: they are two layers then."""


@dataclass(frozen=True)
class Candidate:
    algorithm: Algorithm
    protocol: Protocol
    start_us: float
    us_per_byte: float
    wait: LatencyMix
    part_us_per_byte: float = 0.0
    """Of a message on the channels that it begins with, and the longest that it stays on them."""
    part_most_us: float = 0.0

    def time_us(self, size: float) -> float:
        moved = max(size * self.us_per_byte, min(size * self.part_us_per_byte, self.part_most_us))
        return self.wait.time_us(self.start_us, moved)


def list_candidates(op: Op, fabric: Fabric, fitted: Constants) -> tuple[Candidate, ...]:
    allowed = (way for way in _all(op, fabric, fitted) if way.algorithm not in fabric.without)
    return tuple(way for way in allowed if way.protocol in fabric.protocols)


def _all(op: Op, fabric: Fabric, fitted: Constants) -> Iterator[Candidate]:
    if op == "send":
        yield from _send(fabric, fitted)
    elif op == "all_to_all":
        yield from _all_to_all(fabric, fitted)
    else:
        yield from _rings(op, fabric, fitted)
    if op == "all_reduce":
        yield from _trees(fabric, fitted)
        yield from _switched(fabric, fitted)
    if op in ("all_gather", "reduce_scatter") and fabric.per_node == 1:
        yield _pat(fabric, fitted)


def _rings(op: Op, fabric: Fabric, fitted: Constants) -> Iterator[Candidate]:
    rounds = 2 if op == "all_reduce" else 1
    across = rounds * (fabric.nodes - 1)
    inside = rounds * (fabric.ranks - 1) - across
    # One GPU per node: nothing hides the network, NCCL then counts as in a tree.
    net = STEP_US["net"]["tree" if fabric.per_node == 1 else "ring"]
    for protocol in PROTOCOLS:
        step = STEP_US[fabric.inside]["ring"][protocol]
        if fabric.nodes > 1:
            step = max(step, NET_OVERHEAD_US[protocol])
        start = fitted.launch_us + BASE_US["ring"][protocol] + inside * step + across * (net[protocol] + fabric.hop_us)
        rate = _narrowest(fabric)
        if rounds == 1 and fabric.nodes > 1 and fabric.per_node > 1:
            rate = min(rate, CHANNELS * fitted.channel_gb_s)
        rate *= {"LL": LL_SHARE, "LL128": fitted.ll128_share, "Simple": 1.0}[protocol]
        if protocol == "LL":
            rate = min(rate, _ll_most(fabric))
        # From one rank or to one rank, the whole array passes every link; else each rank is spared its own part.
        share = 1.0 if op in ("broadcast", "reduce") else rounds * (fabric.ranks - 1) / fabric.ranks
        cost = share * US_PER_GB_S / rate
        yield Candidate("ring", protocol, start, cost, _wait(fabric, protocol, fabric.out_ring))


def _trees(fabric: Fabric, fitted: Constants) -> Iterator[Candidate]:
    hops = _tree_hops(fabric)
    for protocol in PROTOCOLS:
        inside = (fabric.per_node - 1) * STEP_US[fabric.inside]["tree"][protocol]
        across = hops * (STEP_US["net"]["tree"][protocol] + fabric.hop_us)
        start = fitted.launch_us + BASE_US["tree"][protocol] + 2 * (inside + across)
        rate = fabric.ring_gb_s / 2 if fabric.per_node > 1 else float("inf")
        if fabric.nodes > 1:
            rate = min(rate, fabric.net_gb_s / _tree_loads(fabric, fitted.many_tree_share), _tree_most(fabric))
        if protocol == "LL":
            rate = min(rate * TREE_LL_SHARE, _ll_most(fabric) / 2)
        if protocol == "LL128":
            rate *= fitted.ll128_share
        yield Candidate("tree", protocol, start, US_PER_GB_S / rate, _wait(fabric, protocol, fabric.out_tree))


def _switched(fabric: Fabric, fitted: Constants) -> Iterator[Candidate]:
    if not fabric.nvls_gb_s:
        return
    far = NVLS_FAR_US * max(0, fabric.per_node - NODE_GPUS)
    start = fitted.launch_us + STEP_US["nvlink"]["nvls"]["Simple"] + fabric.switch_us + far
    if fabric.nodes == 1:
        yield Candidate("nvls", "Simple", start, US_PER_GB_S / fabric.nvls_gb_s, fabric.in_switch)
        return
    start += 2 * _tree_hops(fabric) * (STEP_US["net"]["nvls_tree"]["Simple"] + fabric.hop_us)
    rate = min(fitted.nvls_tree_share * fabric.nvls_gb_s, fabric.net_gb_s / _tree_loads(fabric, fitted.many_nvls_share))
    yield Candidate("nvls_tree", "Simple", start, US_PER_GB_S / rate, fabric.out_tree)


def _pat(fabric: Fabric, fitted: Constants) -> Candidate:
    hop = STEP_US["net"]["pat"]["Simple"] + fabric.hop_us
    start = fitted.launch_us + BASE_US["pat"]["Simple"] + _tree_hops(fabric) * hop / 3.5 + 2.8 * fabric.nodes
    share = (fabric.nodes - 1) / fabric.nodes / PAT_SHARE
    return Candidate("pat", "Simple", start, share * US_PER_GB_S / fabric.net_gb_s, fabric.out_tree)


def _all_to_all(fabric: Fabric, fitted: Constants) -> Iterator[Candidate]:
    outside = fabric.ranks - fabric.per_node
    near = (fabric.per_node - 1) / fabric.ranks / fabric.ring_gb_s
    far = fabric.per_node * outside / fabric.ranks / fabric.all_net_gb_s if outside else 0.0
    peers = PEER_US * (fabric.per_node - 1) + fitted.peer_us * outside
    yield from _direct(fabric, fitted, max(near, far), extra_us=peers)


def _send(fabric: Fabric, fitted: Constants) -> Iterator[Candidate]:
    """Every rank to the next: of a node's GPUs, one sends to another node."""
    if fabric.nodes > 1:
        yield from _direct(fabric, fitted, 1 / min(fabric.one_net_gb_s, SEND_NET_MOST_GB_S))
        return
    channels = max(1, SEND_CHANNELS // fabric.per_node)
    for way in _direct(fabric, fitted, 1 / fabric.ring_gb_s):
        part = US_PER_GB_S / SEND_GB_S
        yield replace(way, part_us_per_byte=part / channels, part_most_us=part * SEND_PART)


def _direct(fabric: Fabric, fitted: Constants, cost: float, extra_us: float = 0.0) -> Iterator[Candidate]:
    for protocol in PROTOCOLS:
        if protocol == "LL128":
            continue
        near, far = STEP_US[fabric.inside]["ring"][protocol], STEP_US["net"]["tree"][protocol] + fabric.hop_us
        start = fitted.launch_us + BASE_US["ring"][protocol] + (far if fabric.nodes > 1 else near) + extra_us
        share = LL_SHARE if protocol == "LL" else 1.0
        wait = _wait(fabric, protocol, fabric.out_ring)
        yield Candidate("direct", protocol, start, cost * US_PER_GB_S / share, wait)


def _wait(fabric: Fabric, protocol: Protocol, across: LatencyMix) -> LatencyMix:
    """Inside a node LL and LL128 send a flag with every line: nothing waits for a chunk."""
    if fabric.nodes > 1:
        return across
    return fabric.in_ring if protocol == "Simple" else ADDITIVE


def _narrowest(fabric: Fabric) -> float:
    rates = [fabric.ring_gb_s] if fabric.per_node > 1 else []
    return min([*rates, fabric.net_gb_s] if fabric.nodes > 1 else rates)


def _tree_hops(fabric: Fabric) -> int:
    return ceil(log2(fabric.nodes))


def _tree_loads(fabric: Fabric, many_share: float) -> float:
    """Arrays that cross a node's cards in one direction: two nodes halve the work of the two trees, more do not."""
    return 1.0 if fabric.nodes < MANY else 2 / many_share


def _tree_most(fabric: Fabric) -> float:
    return TREE_MOST_GB_S.get(fabric.generation, TREE_MOST_GB_S["ampere"])[min(fabric.nodes, MANY)] / 2


def _ll_most(fabric: Fabric) -> float:
    if fabric.nodes == 1:
        return LL_MOST_GB_S.get(fabric.generation, LL_MOST_GB_S["volta"])
    return LL_MOST_GB_S_ACROSS[min(fabric.nodes, MANY)]


@lru_cache(maxsize=1 << 17)
def collective_time_s(op: Op, size: float, group: Group, system: System) -> float:
    """`size`: bytes of the full array, as nccl-tests count; of an all-gather what comes out, of a send what is sent."""
    if group.ranks == 1 or size <= 0:
        return 0.0
    if system.exchanges is not None:
        return system.exchanges.seconds(op, size, group.ranks, group.per_node)
    return min(way.time_us(size) for way in _ways(op, group, system)) * 1e-6


def choose_algorithm(op: Op, size: float, group: Group, system: System) -> Candidate:
    """The algorithm and protocol behind `time_s`."""
    if group.ranks == 1:
        raise ValueError("group.ranks: 1; allowed: 2 or more, one rank exchanges nothing")
    return min(_ways(op, group, system), key=lambda way: way.time_us(size))


@cache
def _ways(op: Op, group: Group, system: System) -> tuple[Candidate, ...]:
    return list_candidates(op, build_fabric(group, system, load_fitted_constants()), load_fitted_constants())
