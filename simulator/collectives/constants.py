"""Constants fitted to measured collectives: reachable shares of rates, network latencies, latency mixing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from simulator.collectives.nccl import PROTOCOLS

DATA = Path(__file__).parents[1] / "data" / "collective_constants.yaml"


@dataclass(frozen=True)
class LatencyMix:
    """How the start-up latency and the transfer time of a collective combine.

    Power 1 adds them; above 1 they overlap; below 1 chunks wait for each other and the sum grows.
    """

    power: float
    most: float = float("inf")
    """Largest extra time, in multiples of the start-up latency."""

    def time_us(self, start: float, moved: float) -> float:
        mixed: float = (start**self.power + moved**self.power) ** (1 / self.power)
        return min(mixed, start * (1 + self.most) + moved)


@dataclass(frozen=True)
class Link:
    """A generation of links inside a node."""

    ring: float
    """Share of the data sheet's rate that rings reach."""
    nvls: float
    """Share that in-switch reduction (NVLS) reaches; 0 without it."""
    switch_us: float = 0.0
    """Latency of NVLS beyond NCCL's table."""


@dataclass(frozen=True)
class Network:
    """A kind of network between nodes."""

    share: float
    """Share of the data sheet's rate that is reached."""
    hop_us: float
    """Latency of a hop beyond NCCL's table."""
    protocols: tuple[str, ...] = PROTOCOLS
    """Protocols that work on it: LL and LL128 need in-order delivery."""
    without: tuple[str, ...] = ()
    """Algorithms that its provider disables."""


@dataclass(frozen=True)
class Constants:
    """All fitted constants of collectives; data/collective_constants.yaml has the values."""

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


SHARED_CONSTANTS = tuple(field.name for field in fields(Constants) if field.type == "float")
"""Constants that are not tied to a link or network."""
ADDITIVE = LatencyMix(1.0)
OVERLAPPED = LatencyMix(2.0)
"""Start-up and transfer overlap: the host starts everything at once and then waits."""


@cache
def load_fitted_constants() -> Constants:
    """Return the committed constants."""
    return parse_constants(yaml.safe_load(DATA.read_text()))


def parse_constants(values: dict[str, Any]) -> Constants:
    """Build the constants from nested dictionaries, as in the YAML file."""
    return Constants(
        **{name: values[name] for name in SHARED_CONSTANTS},
        waits={name: LatencyMix(**entry) for name, entry in values["waits"].items()},
        links={name: Link(**entry) for name, entry in values["links"].items()},
        networks={name: _network(**entry) for name, entry in values["networks"].items()},
    )


def _network(
    share: float, hop_us: float, protocols: list[str] | None = None, without: list[str] | None = None
) -> Network:
    return Network(share, hop_us, tuple(protocols or PROTOCOLS), tuple(without or ()))
