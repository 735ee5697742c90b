"""What was fitted to measured collectives: shares of rates, latencies of networks, how chunks wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simulator.collectives.nccl import PROTOCOLS

DATA = Path(__file__).parents[1] / "data" / "collective_constants.yaml"


@dataclass(frozen=True)
class LatencyMix:
    power: float
    most: float = float("inf")

    def time_us(self, start: float, moved: float) -> float:
        mixed: float = (start**self.power + moved**self.power) ** (1 / self.power)
        return min(mixed, start * (1 + self.most) + moved)


@dataclass(frozen=True)
class Link:
    ring: float
    nvls: float
    switch_us: float = 0.0


@dataclass(frozen=True)
class Network:
    share: float
    hop_us: float
    protocols: tuple[str, ...] = PROTOCOLS
    """LL and LL128 need a network that keeps the order of what is sent."""
    without: tuple[str, ...] = ()
    """Algorithms that its owner turns off."""


@dataclass(frozen=True)
class Constants:
    launch_us: float
    peer_us: float
    ll128_share: float
    nvls_tree_share: float
    many_tree_share: float
    many_nvls_share: float
    all_to_all_share: float
    channel_gb_s: float
    waits: dict[str, LatencyMix]
    links: dict[str, Link]
    networks: dict[str, Network]


SHARED_CONSTANTS = (
    "launch_us",
    "peer_us",
    "ll128_share",
    "nvls_tree_share",
    "many_tree_share",
    "many_nvls_share",
    "all_to_all_share",
    "channel_gb_s",
)
"""Constants that every collective may come from."""
ADDITIVE = LatencyMix(1.0)
OVERLAPPED = LatencyMix(2.0)
"""The host starts everything at once and then waits: a long start and a long transfer hide each other."""


@cache
def load_fitted_constants() -> Constants:
    return parse_constants(yaml.safe_load(DATA.read_text()))


def parse_constants(read: dict[str, Any]) -> Constants:
    return Constants(
        **{name: read[name] for name in SHARED_CONSTANTS},
        waits={name: LatencyMix(**values) for name, values in read["waits"].items()},
        links={name: Link(**values) for name, values in read["links"].items()},
        networks={name: _network(**values) for name, values in read["networks"].items()},
    )


def _network(
    share: float, hop_us: float, protocols: list[str] | None = None, without: list[str] | None = None
) -> Network:
    return Network(share, hop_us, tuple(protocols or PROTOCOLS), tuple(without or ()))
