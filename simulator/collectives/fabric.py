"""What a group of ranks has to send over: rates that are reached and the latencies of a hop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Literal

import yaml

from simulator.collectives.group import Group
from simulator.system import System

DATA = Path(__file__).parents[1] / "data"
NVLINK = {"volta": "nvlink2", "ampere": "nvlink3", "hopper": "nvlink4", "blackwell": "nvlink5"}
EFA = {"volta": "efa1", "ampere": "efa1", "hopper": "efa2", "blackwell": "efa4"}
"""Generation of AWS's adapter where only its name is given: those that came with the GPUs."""
CUBE_LINKS = 6
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
    net_gb_s: float
    """What this group gets of one node's cards."""
    hop_us: float
    overhead_us: float
    mix: float
    """How start-up and transfer mix inside a node."""
    tree: float
    """The same across nodes, of trees."""
    ring: float


@cache
def fabric_of(group: Group, system: System) -> Fabric:
    per_node = min(group.ranks, group.per_node * _rack(system))
    nodes = ceil(group.ranks / per_node)
    joined = system.intra_gb_s > PCIE_MOST_GB_S and not 0 < system.nvlink_domain < per_node
    kind = NVLINK[system.gpu.generation] if joined else "pcie"
    network = networks()[network_kind(system)]
    return Fabric(
        nodes=nodes,
        per_node=per_node,
        generation=system.gpu.generation,
        inside="nvlink" if joined else "pcie",
        ring_gb_s=_ring_gb_s(kind, per_node, system),
        nvls_gb_s=links()[kind]["nvls"] * system.intra_gb_s if per_node >= NVLS_LEAST else 0.0,
        net_gb_s=network["share"] * _cards_gb_s(group, system) if nodes > 1 else 0.0,
        hop_us=system.network_us or network["hop_us"],
        overhead_us=network["overhead_us"],
        mix=links()[kind]["mix"],
        tree=network["tree"],
        ring=network["ring"],
    )


def network_kind(system: System) -> str:
    if system.network == "efa":
        return EFA.get(system.gpu.generation, "efa1")
    if system.network not in networks():
        allowed = ", ".join(["efa", *networks()])
        raise ValueError(f"system.network: {system.network!r}; allowed: {allowed}")
    return system.network


def _ring_gb_s(kind: str, per_node: int, system: System) -> float:
    if kind == "pcie":
        return float(links()[kind]["ring"] * min(system.intra_gb_s, system.host_gb_s))
    reached = float(links()[kind]["ring"] * system.intra_gb_s)
    cube = kind == "nvlink2" and system.gpus_per_node == max(links()["cube_rings"])
    return reached * links()["cube_rings"].get(per_node, CUBE_LINKS) / CUBE_LINKS if cube else reached


def _cards_gb_s(group: Group, system: System) -> float:
    """A GPU uses the cards nearest to it, so a group with few GPUs in a node has few cards."""
    cards = system.cards or system.gpus_per_node
    near = min(1.0, ceil(group.per_node / system.gpus_per_node * cards) / cards)
    together = min(_rack(system), max(1.0, RACK_GPUS / group.per_node))
    return system.inter_gb_s * min(near, 1 / group.sharing) * together


def _rack(system: System) -> int:
    """Nodes that are one NVLink domain."""
    return system.nvlink_domain // system.gpus_per_node if system.nvlink_domain > NODE_MOST else 1


@cache
def networks() -> dict[str, dict[str, float]]:
    read: dict[str, dict[str, float]] = yaml.safe_load((DATA / "networks.yaml").read_text())
    return read


@cache
def links() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DATA / "links.yaml").read_text())
    return read
