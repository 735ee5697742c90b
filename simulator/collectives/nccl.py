"""NCCL's own constants: latency of each step in microseconds, and the bandwidth each protocol reaches.

Taken from github.com/NVIDIA/nccl, src/graph/tuning.cc (2026-06).
"""

from __future__ import annotations

from typing import Literal

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat", "direct"]
Protocol = Literal["LL", "LL128", "Simple"]
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")

BASE_US: dict[str, dict[str, float]] = {
    "tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4},
    "ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4},
    "pat": {"Simple": 8.0},
}
STEP_US: dict[str, dict[str, dict[str, float]]] = {
    "nvlink": {
        "tree": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0},
        "ring": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4},
        "nvls": {"Simple": 25.0},
    },
    "pcie": {
        "tree": {"LL": 1.0, "LL128": 1.9, "Simple": 4.0},
        "ring": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7},
    },
    "net": {
        "tree": {"LL": 5.0, "LL128": 8.5, "Simple": 14.0},
        "ring": {"LL": 2.7, "LL128": 4.0, "Simple": 14.0},
        "nvls_tree": {"Simple": 20.9},
        "pat": {"Simple": 14.0},
    },
}
LL_MAX_GB_S: dict[str, float] = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
"""LL on one node, by GPU generation; LL writes a flag with every word."""
LL_ACROSS_NODES_MAX_GB_S: dict[int, float] = {2: 39.0, 3: 20.4}
"""LL between nodes, by number of nodes (3 means 3 or more)."""
LL_SHARE = 0.5
"""Share of LL's bytes that are data: four of eight."""
TREE_LL_SHARE = 1 / 3.8
PAT_SHARE = 0.75
CHANNELS = 16
"""Channels that NCCL opens between nodes with one card per GPU and eight GPUs; a thread block copies on each."""
TREE_MAX_GB_S: dict[str, dict[int, float]] = {
    "volta": {2: 8 * 18.5, 3: 8 * 10.0},
    "ampere": {2: 8 * 23.6, 3: 8 * 17.8},
    "hopper": {2: CHANNELS * 41.4, 3: CHANNELS * 36.0},
    "blackwell": {2: CHANNELS * 42.8, 3: CHANNELS * 24.0},
}
"""All channels of a tree, by GPU generation and nodes (3 means 3 or more): reducing is slower than copying."""
SEND_CHANNELS = 32
"""Channels of one GPU for messages to all ranks of its group."""
SEND_DOUBLING_BYTES = 16 * 2**20
"""Bytes per channel above which NCCL doubles the channels of a message."""
NET_OVERHEAD_US: dict[str, float] = {"LL": 1.0, "LL128": 1.0, "Simple": 3.0}
"""Minimum latency of every step of a ring that crosses nodes."""
