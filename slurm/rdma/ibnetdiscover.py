"""Parse what `ibnetdiscover` prints: every switch, host adapter and router of an InfiniBand subnet, and their links.

The format is that of infiniband-diags in linux-rdma/rdma-core (ibnetdiscover.c and its manual page): a record per
node, whose first line has its kind and id, and then a line per port with a link. Each link is printed by both of its
ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["switch", "adapter", "router"]
_KINDS: dict[str, NodeKind] = {"S": "switch", "H": "adapter", "R": "router"}
# Such names are given by the factory, so that several switches have them.
_FACTORY_NAME = re.compile(r"mellanox technologies|infiniscale|^quantum|^switch-?x|^switch-?ib", re.IGNORECASE)
_NODE = re.compile(r'^(?:Switch|Ca|Rt)\s+\d+\s+"([SHR])-([0-9a-fA-F]{1,16})"(?:\s*#\s*"(.*)")?')
# Between both ends there may be the GUID of the own port and, in grouped output, names of ports of a chassis.
_LINK = re.compile(r'^\[(\d+)\][^"#]*"([SHR])-([0-9a-fA-F]{1,16})"\[(\d+)\]')


@dataclass(frozen=True)
class SubnetNode:
    """A switch, host adapter (CA) or router."""

    guid: str
    """16 hexadecimal digits in lower case."""
    kind: NodeKind
    name: str = ""
    """Its node description; empty if the output has none."""


@dataclass(frozen=True)
class Subnet:
    """The nodes of a subnet by GUID, and the port at the other end of each port that has a link."""

    nodes: Mapping[str, SubnetNode]
    peers: Mapping[tuple[str, int], tuple[str, int]]

    def find_switch(self, guid: str, port: int) -> str:
        """Return the GUID of the switch that a port is connected to; empty if there is none."""
        peer = self.peers.get((guid, port))
        return peer[0] if peer and self.nodes[peer[0]].kind == "switch" else ""

    def list_neighbors(self, switch: str) -> frozenset[str]:
        """Return the switches that are connected to a switch."""
        peers = {peer for (guid, _port), (peer, _) in self.peers.items() if guid == switch}
        return frozenset(guid for guid in peers if guid != switch and self.nodes[guid].kind == "switch")


def parse_ibnetdiscover(text: str) -> Subnet:
    """Return the subnet in the output, plain or grouped (`-g`); without any node if it has no records."""
    nodes: dict[str, SubnetNode] = {}
    peers: dict[tuple[str, int], tuple[str, int]] = {}
    guid = ""
    for line in text.splitlines():
        if header := _NODE.match(line):
            guid = normalize_guid(header[2])
            nodes[guid] = SubnetNode(guid, _KINDS[header[1]], (header[3] or "").strip())
        elif guid and (link := _LINK.match(line)):
            peer = normalize_guid(link[3])
            # An output that was cut off may not have the record of the other end.
            nodes.setdefault(peer, SubnetNode(peer, _KINDS[link[2]]))
            peers[guid, int(link[1])] = (peer, int(link[4]))
            peers[peer, int(link[4])] = (guid, int(link[1]))
    return Subnet(nodes, peers)


def merge_subnets(*subnets: Subnet) -> Subnet:
    """Return all nodes and links of subnets; of nodes and links that several have, those of the last."""
    nodes = {guid: node for subnet in subnets for guid, node in subnet.nodes.items()}
    return Subnet(nodes, {end: peer for subnet in subnets for end, peer in subnet.peers.items()})


def normalize_guid(text: str) -> str:
    """Return a GUID as 16 digits: sysfs writes colons, and ibnetdiscover leaves out leading zeros in some places."""
    return text.replace(":", "").removeprefix("0x").lower().zfill(16)


def name_switch(node: SubnetNode) -> str:
    """Return the name that an administrator gave a switch; empty if it has that of the factory.

    Managed switches describe themselves as `MF0;NAME:MODEL/U1`, and those in a chassis as `MF0;NAME:MODEL/L01/U1`.
    """
    managed = re.fullmatch(r"[^;]*;([^:]+):[^/]+((?:/[^/]+)*?)(?:/U\d+)?", node.name)
    if managed:
        return f"{managed[1]}{managed[2]}"
    return "" if _FACTORY_NAME.search(node.name) else node.name
