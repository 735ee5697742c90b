"""Composed outputs of ibnetdiscover and lldpctl.

The format of ibnetdiscover follows its manual page and ibnetdiscover.c in linux-rdma/rdma-core; the shapes of node
descriptions (managed, unmanaged and chassis switches, aggregation nodes of SHARP, rdma-ndd's names of adapters) are
those that administrators have published for ConnectX-6 and 7 with HDR and NDR switches. GUIDs, names and cabling are
composed. lldpctl's is as in the issues 236 of lldpd/lldpd and 259 of netenglabs/suzieq: one entry is a mapping, several
are a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Link = tuple[str, int, str, int]
"""Ids of both ends with their ports, e.g. `S-a1`, 1, `H-1`, 1."""


def render_subnet(names: Mapping[str, str], links: Sequence[Link], widths: Sequence[str] = ("4xNDR",)) -> str:
    """Return the output for nodes, described by their short ids, and links; widths are used in turn."""
    lines = [
        "#",
        "# Topology file: generated on Wed Nov 18 12:00:00 2026",
        "#",
        f"# Initiated from node {guid_of(links[0][2])} port {guid_of(links[0][2])}",
    ]
    for node, name in names.items():
        guid, kind = guid_of(node), node[0]
        key = {"S": "switchguid", "H": "caguid", "R": "rtguid"}[kind]
        lines += ["", "vendid=0x2c9", "devid=0xd2f2", f"sysimgguid=0x{guid.lstrip('0')}"]
        lines += [f"{key}=0x{guid.lstrip('0')}{f'({guid})' if kind == 'S' else ''}"]
        title = {"S": "Switch\t65", "H": "Ca\t1", "R": "Rt\t1"}[kind]
        tail = " enhanced port 0 lid 1 lmc 0" if kind == "S" else ""
        lines += [f'{title} "{_id(node)}"\t\t# "{name}"{tail}']
        for number, (near, port, other, peer) in enumerate(links):
            width = widths[number % len(widths)]
            for own, own_port, far, far_port in ((near, port, other, peer), (other, peer, near, port)):
                if own == node:
                    lines.append(_link((own, own_port, far, far_port), names[far], width))
    return "\n".join([*lines, ""])


def guid_of(node: str) -> str:
    """Return the GUID of a node, by its short id."""
    return node[2:].zfill(16)


def sysfs_guid(node: str) -> str:
    """Return the GUID as sysfs writes it."""
    guid = guid_of(node)
    return ":".join(guid[i : i + 4] for i in range(0, 16, 4))


def render_lldp(neighbors: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Return the output for interfaces and what is at their other end."""
    listed: Any = [{interface: neighbor} for interface, neighbor in neighbors]
    return json.dumps({"lldp": {"interface": listed[0] if len(listed) == 1 else listed} if listed else {}}, indent=2)


def describe_switch(mac: str, name: str = "", capability: object = ({"type": "Bridge", "enabled": True},)) -> Any:
    """Return the neighbor entry of a switch."""
    chassis: dict[str, Any] = {"id": {"type": "mac", "value": mac}, "descr": "a network OS", "ttl": "120"}
    if capability:
        chassis["capability"] = list(capability) if isinstance(capability, tuple) else capability
    port = {"id": {"type": "ifname", "value": "swp1"}, "descr": "to a host"}
    return {"via": "LLDP", "rid": "1", "age": "0 day, 08:40:40", "chassis": {name: chassis} if name else chassis} | {
        "port": port
    }


def _id(node: str) -> str:
    return f"{node[0]}-{guid_of(node)}"


def _link(link: Link, name: str, width: str) -> str:
    own, port, far, far_port = link
    if own.startswith("S"):
        own_guid = f"({guid_of(far).lstrip('0')}) " if not far.startswith("S") else ""
        return f'[{port}]\t"{_id(far)}"[{far_port}]{own_guid}\t\t# "{name}" lid 7 {width}'
    return f'[{port}]({guid_of(own).lstrip("0")}) \t"{_id(far)}"[{far_port}]\t\t# lid 7 lmc 0 "{name}" lid 1 {width}'
