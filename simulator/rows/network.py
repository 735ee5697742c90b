"""Parse the network that a source describes in free text."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_GB_S = {"volta": 50.0, "turing": 6.25, "ampere": 200.0, "ada": 50.0, "hopper": 400.0, "blackwell": 400.0}
"""Rate of one node with eight GPUs, by GPU generation, if the source gives none."""
# Patterns of the words that sources use for each kind of network; the first match counts.
KINDS = (
    ("efa", r"efa|aws"),
    ("tcpxo", r"tcpxo"),
    ("tcpx", r"tcpx"),
    ("roce", r"roce|spectrum-x"),
    ("slingshot", r"slingshot|cassini"),
    ("infiniband", r"infiniband| ib|hdr|ndr|edr|omni-path|dgx|quantum"),
    ("ethernet", r"ethernet|tcp"),
)
CARDS_PATTERN = r"(\d+) ?x ?(\d+) ?gb(?:ps|/s|it)"


@dataclass(frozen=True)
class NetworkDescription:
    """A network as a source describes it."""

    kind: str
    gb_s: float
    """Rate of one node per direction; 0 if not given."""
    cards: int = 0
    """Network cards of one node; 0 if not given."""


def parse_network(text: str, gpus_per_node: int) -> NetworkDescription:
    """Parse the kind, rate and number of cards of a network."""
    low = text.lower()
    kind = next((kind for kind, pattern in KINDS if re.search(pattern, low)), "infiniband")
    cards = re.search(CARDS_PATTERN, low)
    return NetworkDescription(kind, _gb_s(low, gpus_per_node), int(cards[1]) if cards else 0)


def _gb_s(text: str, gpus_per_node: int) -> float:
    if measured := re.search(r"busbw (\d+(?:\.\d+)?) ?gb(?:ps|/s|it)", text):
        return float(measured[1]) / 8
    if cards := re.search(CARDS_PATTERN, text):
        return int(cards[1]) * int(cards[2]) / 8
    if node := re.search(r"(\d+) ?gb(?:ps|it/s|/s)/node", text):
        return int(node[1]) / 8
    if each := re.search(r"(?:hdr|ndr|edr|infiniband|roce)[^0-9]*(\d{3}) ?gb(?:ps|/s|it)", text):
        return gpus_per_node * int(each[1]) / 8
    return 0.0
