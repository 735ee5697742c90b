"""A network from the words that a source has for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

USUAL_GB_S = {"volta": 50.0, "turing": 6.25, "ampere": 200.0, "ada": 50.0, "hopper": 400.0, "blackwell": 400.0}
"""Of one node with eight GPUs of a generation, where nothing is said."""
# Patterns of the words that sources use for each kind of network; the first that matches counts.
KINDS = (
    ("efa", r"efa|aws"),
    ("tcpxo", r"tcpxo"),
    ("tcpx", r"tcpx"),
    ("roce", r"roce|spectrum-x"),
    ("slingshot", r"slingshot|cassini"),
    ("infiniband", r"infiniband| ib|hdr|ndr|edr|omni-path|dgx|quantum"),
    ("ethernet", r"ethernet|tcp"),
)
MANY = r"(\d+) ?x ?(\d+) ?gb(?:ps|/s|it)"


@dataclass(frozen=True)
class NetworkDescription:
    kind: str
    gb_s: float
    """Of one node and direction; 0 where the words do not say."""
    cards: int = 0
    """Of one node; 0 where the words do not say."""


def parse_network(words: str, gpus_per_node: int) -> NetworkDescription:
    low = words.lower()
    kind = next((kind for kind, pattern in KINDS if re.search(pattern, low)), "infiniband")
    many = re.search(MANY, low)
    return NetworkDescription(kind, _gb_s(low, gpus_per_node), int(many[1]) if many else 0)


def _gb_s(words: str, gpus_per_node: int) -> float:
    if measured := re.search(r"busbw (\d+(?:\.\d+)?) ?gb(?:ps|/s|it)", words):
        return float(measured[1]) / 8
    if many := re.search(MANY, words):
        return int(many[1]) * int(many[2]) / 8
    if node := re.search(r"(\d+) ?gb(?:ps|it/s|/s)/node", words):
        return int(node[1]) / 8
    if each := re.search(r"(?:hdr|ndr|edr|infiniband|roce)[^0-9]*(\d{3}) ?gb(?:ps|/s|it)", words):
        return gpus_per_node * int(each[1]) / 8
    return 0.0
