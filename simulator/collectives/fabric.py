"""What a group of ranks has to send over: rates that are reached, latencies of a hop, how chunks wait."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from simulator.collectives.constants import ADDITIVE, OVERLAPPED, Constants, LatencyMix
from simulator.collectives.group import Group
from simulator.collectives.nccl import PROTOCOLS
from simulator.hardware.system import System

NVLINK = {"volta": "nvlink2", "ampere": "nvlink3", "hopper": "nvlink4", "blackwell": "nvlink5"}
EFA = {"volta": "efa1", "ampere": "efa1", "hopper": "efa2", "blackwell": "efa4"}
"""Generation of AWS's adapter where the rate of a card does not tell: those that came with the GPUs."""
EFA_CARD_GB_S = {25.0: "efa3", 50.0: "efa4"}
INFINIBAND_CARD_GB_S = {12.5: "infiniband_edr", 25.0: "infiniband_hdr"}
"""Cards up to such a rate sit in a slot of an older PCIe, which takes its share."""
# Rings of one link each that NCCL finds among the first GPUs of a DGX-1 (V100): its links are a cube with diagonals, no
# switch. Five have none around; there, two go through a GPU that only passes on.
CUBE_RINGS = {2: 1.0, 3: 2.0, 4: 3.8, 5: 1.65, 6: 2.03, 7: 3.87, 8: 6.0}
CUBE_GPUS = 8
NVLS_LEAST = 5
"""GPUs in a node from which on NCCL lets the switch add up."""
NODE_MOST = 16
"""No node has more GPUs: a larger NVLink domain is a rack of nodes."""
RACK_GPUS = 8
"""Rings and trees leave a rack over the cards of so many GPUs: 20 racks of GB200 reach 400 of their 3600 GB/s."""
PCIE_MOST_GB_S = 128.0
"""No PCIe slot is faster in one direction, no NVLink slower."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    nodes: int
    """Domains of fast links: nodes, or racks that are one NVLink domain."""
    per_node: int
    generation: str
    inside: Literal["nvlink", "pcie"]
    ring_gb_s: float
    """Bus rate of rings inside a node."""
    nvls_gb_s: float
    """Array bytes per second when the switch adds up; 0 where it cannot."""
    switch_us: float
    """Beyond NCCL's table, until the switch adds up."""
    net_gb_s: float
    """What this group gets of one node's cards for rings and trees."""
    all_net_gb_s: float
    """The same for messages of every rank to every other."""
    one_net_gb_s: float
    """The same for messages of one of a node's GPUs."""
    hop_us: float
    protocols: tuple[str, ...]
    without: tuple[str, ...]
    """Algorithms that are not used."""
    in_ring: LatencyMix
    in_switch: LatencyMix
    out_tree: LatencyMix
    out_ring: LatencyMix

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


def build_fabric(group: Group, system: System, fitted: Constants) -> Fabric:
    per_node, nodes = _per_node(group, system), count_domains(group, system)
    link, kind = classify_link(group, system), classify_network(system, fitted)
    network, waits, cards = fitted.networks[kind], fitted.waits, _cards_gb_s(group, system, group.per_node)
    # Without a switch, every GPU has its own wires to its neighbours.
    switched = link not in ("nvlink2", "pcie")
    hides = {"tcpx": OVERLAPPED, "loopback": ADDITIVE}.get(kind)
    return Fabric(
        nodes=nodes,
        per_node=per_node,
        generation=system.gpu.generation,
        inside="pcie" if link == "pcie" else "nvlink",
        ring_gb_s=_ring_gb_s(fitted.links[link].ring, link, per_node, system),
        nvls_gb_s=fitted.links[link].nvls * system.intra_gb_s if per_node >= NVLS_LEAST else 0.0,
        switch_us=fitted.links[link].switch_us,
        net_gb_s=network.share * cards * min(_rack(system), max(1.0, RACK_GPUS / group.per_node)),
        all_net_gb_s=fitted.all_to_all_share * network.share * cards * _rack(system),
        one_net_gb_s=network.share * _cards_gb_s(group, system, 1),
        hop_us=system.network_us or network.hop_us,
        protocols=network.protocols if nodes > 1 else PROTOCOLS,
        without=network.without if nodes > 1 else (),
        in_ring=waits["in_ring"] if switched else ADDITIVE,
        in_switch=waits["in_switch"],
        out_tree=hides or waits["out_tree"],
        out_ring=hides or waits["out_ring"],
    )


def count_domains(group: Group, system: System) -> int:
    """Domains of fast links that the group spans."""
    return ceil(group.ranks / _per_node(group, system))


def classify_link(group: Group, system: System) -> str:
    joined = system.intra_gb_s > PCIE_MOST_GB_S and not 0 < system.nvlink_domain < _per_node(group, system)
    # A generation without NVLink (Ada) has none, whatever rate somebody gives its links.
    return NVLINK.get(system.gpu.generation, "pcie") if joined else "pcie"


def classify_network(system: System, fitted: Constants) -> str:
    if system.network == "efa":
        card = system.inter_gb_s / system.cards if system.cards else 0.0
        return EFA_CARD_GB_S.get(card) or EFA.get(system.gpu.generation, "efa1")
    if system.network == "infiniband":
        card = system.inter_gb_s / (system.cards or system.gpus_per_node)
        older = (kind for most, kind in INFINIBAND_CARD_GB_S.items() if 0 < card <= most)
        return next(older, system.network)
    if system.network not in fitted.networks:
        allowed = ", ".join(["efa", *fitted.networks])
        raise ValueError(f"system.network: {system.network!r}; allowed: {allowed}; choose one")
    return system.network


def _per_node(group: Group, system: System) -> int:
    return min(group.ranks, group.per_node * _rack(system))


def _ring_gb_s(share: float, link: str, per_node: int, system: System) -> float:
    if link == "pcie":
        return share * min(system.intra_gb_s, system.host_gb_s)
    if link == "nvlink2" and system.gpus_per_node == CUBE_GPUS and 1 < per_node <= CUBE_GPUS:
        return share * system.intra_gb_s * CUBE_RINGS[per_node] / CUBE_RINGS[CUBE_GPUS]
    return share * system.intra_gb_s


def _cards_gb_s(group: Group, system: System, gpus: int) -> float:
    """Of so many GPUs of a node: each uses the cards nearest to it, so few of them have few cards."""
    cards = system.cards or system.gpus_per_node
    near = min(1.0, ceil(gpus / system.gpus_per_node * cards) / cards)
    return system.inter_gb_s * min(near, 1 / group.sharing)


def _rack(system: System) -> int:
    """Nodes that are one NVLink domain."""
    return max(1, system.nvlink_domain // system.gpus_per_node) if system.nvlink_domain > NODE_MOST else 1
