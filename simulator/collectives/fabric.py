"""Derive the rates and latencies that a group of ranks gets from its links and network."""

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
"""Generation of the EFA adapter, by GPU generation, if the rate of a card does not determine it."""
EFA_CARD_GB_S = {25.0: "efa3", 50.0: "efa4"}
INFINIBAND_CARD_GB_S = {12.5: "infiniband_edr", 25.0: "infiniband_hdr"}
"""InfiniBand generation by the largest rate of its cards: older cards sit in slower PCIe slots."""
# Rings that NCCL finds among the first GPUs of a DGX-1 (V100), in links: its NVLinks form a cube with diagonals and no
# switch. Five GPUs have no ring; two rings then go through a GPU that only forwards.
CUBE_RINGS = {2: 1.0, 3: 2.0, 4: 3.8, 5: 1.65, 6: 2.03, 7: 3.87, 8: 6.0}
CUBE_GPUS = 8
NVLS_MIN_GPUS = 5
"""GPUs per node from which NCCL uses in-switch reduction (NVLS)."""
NODE_MAX_GPUS = 16
"""A larger NVLink domain is a rack of nodes."""
RACK_GPUS = 8
"""GPUs whose cards rings and trees use to leave a rack: 20 racks of GB200 reach 400 of their 3600 GB/s."""
PCIE_MAX_GB_S = 128.0
"""Every PCIe slot is slower than this in one direction, every NVLink faster."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Rates and latencies that a group of ranks gets."""

    nodes: int
    """Domains of fast links: nodes, or racks that are one NVLink domain."""
    per_node: int
    """Ranks of the group per domain."""
    generation: str
    inside: Literal["nvlink", "pcie"]
    ring_gb_s: float
    """Bus bandwidth of rings inside a node."""
    nvls_gb_s: float
    """Rate of in-switch reduction (NVLS), in bytes of the array; 0 without it."""
    switch_us: float
    """Latency of NVLS beyond NCCL's table."""
    net_gb_s: float
    """Share of one node's cards that this group gets for rings and trees."""
    all_net_gb_s: float
    """The same for all-to-all messages."""
    one_net_gb_s: float
    """The same for messages of a single GPU."""
    hop_us: float
    protocols: tuple[str, ...]
    without: tuple[str, ...]
    """Algorithms that NCCL does not use here."""
    in_ring: LatencyMix
    in_switch: LatencyMix
    out_tree: LatencyMix
    out_ring: LatencyMix

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


def build_fabric(group: Group, system: System, constants: Constants) -> Fabric:
    """Derive the fabric of a group on a system from the fitted constants."""
    per_node, nodes = _per_node(group, system), count_domains(group, system)
    link, kind = classify_link(group, system), classify_network(system, constants)
    network, waits, cards = constants.networks[kind], constants.waits, _cards_gb_s(group, system, group.per_node)
    # Without a switch, every GPU has dedicated links to its neighbors, and chunks do not wait for each other.
    switched = link not in ("nvlink2", "pcie")
    mix = {"tcpx": OVERLAPPED, "loopback": ADDITIVE}.get(kind)
    return Fabric(
        nodes=nodes,
        per_node=per_node,
        generation=system.gpu.generation,
        inside="pcie" if link == "pcie" else "nvlink",
        ring_gb_s=_ring_gb_s(constants.links[link].ring, link, per_node, system),
        nvls_gb_s=constants.links[link].nvls * system.intra_gb_s if per_node >= NVLS_MIN_GPUS else 0.0,
        switch_us=constants.links[link].switch_us,
        net_gb_s=network.share * cards * min(_rack(system), max(1.0, RACK_GPUS / group.per_node)),
        all_net_gb_s=constants.all_to_all_share * network.share * cards * _rack(system),
        one_net_gb_s=network.share * _cards_gb_s(group, system, 1),
        hop_us=system.network_us or network.hop_us,
        protocols=network.protocols if nodes > 1 else PROTOCOLS,
        without=network.without if nodes > 1 else (),
        in_ring=waits["in_ring"] if switched else ADDITIVE,
        in_switch=waits["in_switch"],
        out_tree=mix or waits["out_tree"],
        out_ring=mix or waits["out_ring"],
    )


def count_domains(group: Group, system: System) -> int:
    """Return the number of nodes, or racks that are one NVLink domain, that the group spans."""
    return ceil(group.ranks / _per_node(group, system))


def classify_link(group: Group, system: System) -> str:
    """Return the kind of link inside a node: an NVLink generation or pcie."""
    has_nvlink = system.intra_gb_s > PCIE_MAX_GB_S and not 0 < system.nvlink_domain < _per_node(group, system)
    # A generation without NVLink (Ada) uses PCIe even if a row claims a higher rate.
    return NVLINK.get(system.gpu.generation, "pcie") if has_nvlink else "pcie"


def classify_network(system: System, constants: Constants) -> str:
    """Return the network's key in the fitted constants; raise ValueError if the network is unknown."""
    if system.network == "efa":
        card = system.inter_gb_s / system.cards if system.cards else 0.0
        return EFA_CARD_GB_S.get(card) or EFA.get(system.gpu.generation, "efa1")
    if system.network == "infiniband":
        card = system.inter_gb_s / (system.cards or system.gpus_per_node)
        older = (kind for limit, kind in INFINIBAND_CARD_GB_S.items() if 0 < card <= limit)
        return next(older, system.network)
    if system.network not in constants.networks:
        allowed = ", ".join(["efa", *constants.networks])
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
    """Return the rate of the cards that `gpus` of a node use: each uses only the cards nearest to it."""
    cards = system.cards or system.gpus_per_node
    near = min(1.0, ceil(gpus / system.gpus_per_node * cards) / cards)
    return system.inter_gb_s * min(near, 1 / group.sharing)


def _rack(system: System) -> int:
    """Return the number of nodes in one NVLink domain."""
    return max(1, system.nvlink_domain // system.gpus_per_node) if system.nvlink_domain > NODE_MAX_GPUS else 1
