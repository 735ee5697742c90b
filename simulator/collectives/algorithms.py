"""Time the algorithms and protocols that NCCL can use for a collective, and choose the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil, log2
from typing import get_args

from simulator.collectives.constants import ADDITIVE, Constants, LatencyMix, load_fitted_constants
from simulator.collectives.fabric import Fabric, build_fabric
from simulator.collectives.group import Group, Op
from simulator.collectives.nccl import (
    BASE_US,
    CHANNELS,
    LL_ACROSS_NODES_MAX_GB_S,
    LL_MAX_GB_S,
    LL_SHARE,
    NET_OVERHEAD_US,
    PAT_SHARE,
    PROTOCOLS,
    SEND_CHANNELS,
    SEND_DOUBLING_BYTES,
    STEP_US,
    TREE_LL_SHARE,
    TREE_MAX_GB_S,
    Algorithm,
    Protocol,
)
from simulator.hardware.system import System

US_PER_GB_S = 1e-3
"""Microseconds per byte at 1 GB/s."""
PEER_US = 0.7
"""Latency per additional peer of an all-to-all inside a node: one more pair of connections."""
SEND_GB_S = 22.0
"""Copy rate of a thread block, which serves one channel inside a node."""
SEND_NET_MAX_GB_S = 25.0
"""Largest rate of one message between nodes: it has only two channels."""
MANY_NODES = 3
"""Nodes from which NCCL's tables do not change any more."""
NODE_GPUS = 8
RING_OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
NVLS_FAR_US = 1.5
"""Latency of NVLS per GPU of a rack beyond the first node: the switches have two layers."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm and protocol with its cost on one fabric."""

    algorithm: Algorithm
    protocol: Protocol
    start_us: float
    us_per_byte: float
    mix: LatencyMix
    few_channels_us_per_byte: float = 0.0
    """Cost of a message on its initial channels, before NCCL doubles them."""
    few_channels_max_us: float = 0.0
    """Longest time that a message stays on its initial channels."""

    def time_us(self, size: float) -> float:
        moved = max(size * self.us_per_byte, min(size * self.few_channels_us_per_byte, self.few_channels_max_us))
        return self.mix.time_us(self.start_us, moved)


def list_candidates(op: Op, fabric: Fabric, constants: Constants) -> tuple[Candidate, ...]:
    """Return every algorithm and protocol that NCCL can use for an operation on a fabric."""
    enabled = (
        candidate for candidate in _all_candidates(op, fabric, constants) if candidate.algorithm not in fabric.without
    )
    return tuple(candidate for candidate in enabled if candidate.protocol in fabric.protocols)


def _all_candidates(op: Op, fabric: Fabric, constants: Constants) -> Iterator[Candidate]:
    if op == "send":
        yield from _send(fabric, constants)
    elif op == "all_to_all":
        yield from _all_to_all(fabric, constants)
    elif op in RING_OPS:
        yield from _rings(op, fabric, constants)
    else:
        raise ValueError(f"op: {op!r}; allowed: {', '.join(get_args(Op))}")
    if op == "all_reduce":
        yield from _trees(fabric, constants)
        yield from _nvls(fabric, constants)
    if op in ("all_gather", "reduce_scatter") and fabric.per_node == 1:
        yield _pat(fabric, constants)


def _rings(op: Op, fabric: Fabric, constants: Constants) -> Iterator[Candidate]:
    rounds = 2 if op == "all_reduce" else 1
    across = rounds * (fabric.nodes - 1)
    inside = rounds * (fabric.ranks - 1) - across
    # With one GPU per node nothing overlaps the network; NCCL then uses the latency of a tree.
    net = STEP_US["net"]["tree" if fabric.per_node == 1 else "ring"]
    for protocol in PROTOCOLS:
        step = STEP_US[fabric.inside]["ring"][protocol]
        if fabric.nodes > 1:
            step = max(step, NET_OVERHEAD_US[protocol])
        start = (
            constants.launch_us + BASE_US["ring"][protocol] + inside * step + across * (net[protocol] + fabric.hop_us)
        )
        rate = _narrowest(fabric)
        if rounds == 1 and fabric.nodes > 1 and fabric.per_node > 1:
            rate = min(rate, CHANNELS * constants.channel_gb_s)
        rate *= {"LL": LL_SHARE, "LL128": constants.ll128_share, "Simple": 1.0}[protocol]
        if protocol == "LL":
            rate = min(rate, _ll_max_gb_s(fabric))
        # With a root the whole array crosses every link; otherwise each rank skips its own part.
        share = 1.0 if op in ("broadcast", "reduce") else rounds * (fabric.ranks - 1) / fabric.ranks
        cost = share * US_PER_GB_S / rate
        yield Candidate("ring", protocol, start, cost, _latency_mix(fabric, protocol, fabric.out_ring))


def _trees(fabric: Fabric, constants: Constants) -> Iterator[Candidate]:
    hops = _tree_hops(fabric)
    for protocol in PROTOCOLS:
        inside = (fabric.per_node - 1) * STEP_US[fabric.inside]["tree"][protocol]
        across = hops * (STEP_US["net"]["tree"][protocol] + fabric.hop_us)
        start = constants.launch_us + BASE_US["tree"][protocol] + 2 * (inside + across)
        rate = fabric.ring_gb_s / 2 if fabric.per_node > 1 else float("inf")
        if fabric.nodes > 1:
            rate = min(
                rate, fabric.net_gb_s / _tree_crossings(fabric, constants.many_tree_share), _tree_max_gb_s(fabric)
            )
        if protocol == "LL":
            rate = min(rate * TREE_LL_SHARE, _ll_max_gb_s(fabric) / 2)
        if protocol == "LL128":
            rate *= constants.ll128_share
        yield Candidate("tree", protocol, start, US_PER_GB_S / rate, _latency_mix(fabric, protocol, fabric.out_tree))


def _nvls(fabric: Fabric, constants: Constants) -> Iterator[Candidate]:
    if not fabric.nvls_gb_s:
        return
    far = NVLS_FAR_US * max(0, fabric.per_node - NODE_GPUS)
    start = constants.launch_us + STEP_US["nvlink"]["nvls"]["Simple"] + fabric.switch_us + far
    if fabric.nodes == 1:
        yield Candidate("nvls", "Simple", start, US_PER_GB_S / fabric.nvls_gb_s, fabric.in_switch)
        return
    start += 2 * _tree_hops(fabric) * (STEP_US["net"]["nvls_tree"]["Simple"] + fabric.hop_us)
    rate = min(
        constants.nvls_tree_share * fabric.nvls_gb_s,
        fabric.net_gb_s / _tree_crossings(fabric, constants.many_nvls_share),
    )
    yield Candidate("nvls_tree", "Simple", start, US_PER_GB_S / rate, fabric.out_tree)


def _pat(fabric: Fabric, constants: Constants) -> Candidate:
    hop = STEP_US["net"]["pat"]["Simple"] + fabric.hop_us
    start = constants.launch_us + BASE_US["pat"]["Simple"] + _tree_hops(fabric) * hop / 3.5 + 2.8 * fabric.nodes
    share = (fabric.nodes - 1) / fabric.nodes / PAT_SHARE
    return Candidate("pat", "Simple", start, share * US_PER_GB_S / fabric.net_gb_s, fabric.out_tree)


def _all_to_all(fabric: Fabric, constants: Constants) -> Iterator[Candidate]:
    outside = fabric.ranks - fabric.per_node
    near = (fabric.per_node - 1) / fabric.ranks / fabric.ring_gb_s
    far = fabric.per_node * outside / fabric.ranks / fabric.all_net_gb_s if outside else 0.0
    peers = PEER_US * (fabric.per_node - 1) + constants.peer_us * outside
    yield from _direct(fabric, constants, max(near, far), extra_us=peers)


def _send(fabric: Fabric, constants: Constants) -> Iterator[Candidate]:
    """Yield a send from every rank to the next: one GPU of each node sends to another node."""
    if fabric.nodes > 1:
        yield from _direct(fabric, constants, 1 / min(fabric.one_net_gb_s, SEND_NET_MAX_GB_S))
        return
    channels = max(1, SEND_CHANNELS // fabric.per_node)
    for candidate in _direct(fabric, constants, 1 / fabric.ring_gb_s):
        channel = US_PER_GB_S / SEND_GB_S
        yield replace(
            candidate,
            few_channels_us_per_byte=channel / channels,
            few_channels_max_us=channel * SEND_DOUBLING_BYTES,
        )


def _direct(fabric: Fabric, constants: Constants, cost: float, extra_us: float = 0.0) -> Iterator[Candidate]:
    for protocol in PROTOCOLS:
        if protocol == "LL128":
            continue
        near, far = STEP_US[fabric.inside]["ring"][protocol], STEP_US["net"]["tree"][protocol] + fabric.hop_us
        start = constants.launch_us + BASE_US["ring"][protocol] + (far if fabric.nodes > 1 else near) + extra_us
        share = LL_SHARE if protocol == "LL" else 1.0
        mix = _latency_mix(fabric, protocol, fabric.out_ring)
        yield Candidate("direct", protocol, start, cost * US_PER_GB_S / share, mix)


def _latency_mix(fabric: Fabric, protocol: Protocol, across: LatencyMix) -> LatencyMix:
    """Return how latency and transfer combine; inside a node LL and LL128 do not wait for chunks."""
    if fabric.nodes > 1:
        return across
    return fabric.in_ring if protocol == "Simple" else ADDITIVE


def _narrowest(fabric: Fabric) -> float:
    rates = [fabric.ring_gb_s] if fabric.per_node > 1 else []
    return min([*rates, fabric.net_gb_s] if fabric.nodes > 1 else rates)


def _tree_hops(fabric: Fabric) -> int:
    return ceil(log2(fabric.nodes))


def _tree_crossings(fabric: Fabric, many_share: float) -> float:
    """Return how often the array crosses a node's cards per direction: two nodes share the work of the two trees."""
    return 1.0 if fabric.nodes < MANY_NODES else 2 / many_share


def _tree_max_gb_s(fabric: Fabric) -> float:
    return TREE_MAX_GB_S.get(fabric.generation, TREE_MAX_GB_S["ampere"])[min(fabric.nodes, MANY_NODES)] / 2


def _ll_max_gb_s(fabric: Fabric) -> float:
    if fabric.nodes == 1:
        return LL_MAX_GB_S.get(fabric.generation, LL_MAX_GB_S["volta"])
    return LL_ACROSS_NODES_MAX_GB_S[min(fabric.nodes, MANY_NODES)]


@lru_cache(maxsize=1 << 17)
def collective_time_s(op: Op, size: float, group: Group, system: System) -> float:
    """Return the seconds of a collective.

    `size` is the bytes of the full array as nccl-tests count: the output of an all-gather, the message of a send.
    """
    if group.ranks == 1 or size <= 0:
        return 0.0
    if system.exchanges is not None:
        return system.exchanges.seconds(op, size, group.ranks, group.per_node)
    return min(candidate.time_us(size) for candidate in _candidates(op, group, system)) * 1e-6


def choose_algorithm(op: Op, size: float, group: Group, system: System) -> Candidate:
    """Return the algorithm and protocol behind `collective_time_s`."""
    if group.ranks == 1:
        raise ValueError("group.ranks: 1; allowed: 2 or more; a single rank has nothing to exchange")
    return min(_candidates(op, group, system), key=lambda candidate: candidate.time_us(size))


@cache
def _candidates(op: Op, group: Group, system: System) -> tuple[Candidate, ...]:
    return list_candidates(op, build_fabric(group, system, load_fitted_constants()), load_fitted_constants())
