"""Systems that the tests of collectives share."""

from __future__ import annotations

from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System


def h100(nodes: int, network: str = "infiniband") -> System:
    return System(
        name="h100",
        gpu=load_gpu("h100"),
        gpus_per_node=8,
        nodes=nodes,
        intra_gb_s=450,
        inter_gb_s=400 if nodes > 1 else 0,
        network=network,
    )


def v100(nodes: int = 1) -> System:
    return System(
        name="v100",
        gpu=load_gpu("v100"),
        gpus_per_node=8,
        nodes=nodes,
        intra_gb_s=150,
        inter_gb_s=50,
        network="infiniband",
    )


def laptop(nodes: int, gb_s: float = 1.5, network_us: float = 60.0) -> System:
    return System(
        name="local",
        gpu=load_gpu("l4"),
        gpus_per_node=1,
        nodes=nodes,
        intra_gb_s=gb_s,
        inter_gb_s=gb_s,
        nvlink_domain=1,
        network="loopback",
        network_us=network_us,
    )
