"""Group hosts by their leaf switches, and leaf switches by their spine. Pure functions.

With several rails, each adapter of a host is under a switch of its own. Hosts under the same switches then count as
under one leaf switch, because each of their adapters reaches its peers through a single switch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

Switches = frozenset[str]
_MAX_NAME = 20


@dataclass(frozen=True)
class Leaf:
    """The hosts that are under the same leaf switches."""

    switches: Switches
    hosts: tuple[str, ...]
    pod: int = 0
    """Number, from 1, of the leaf switches that share a spine; 0 if all or none do."""


def group_leaves(above: Mapping[str, Switches], neighbors: Mapping[str, Collection[str]]) -> tuple[Leaf, ...]:
    """Return the leaves of hosts in the order of their first host; hosts under no switch are in none.

    `above` has the switches of each host, and `neighbors` the switches that each of these is connected to. A host that
    lacks links of others belongs to them, if its switches are a part of theirs only.
    """
    sets = {switches for switches in above.values() if switches}
    largest = [switches for switches in sets if not any(switches < other for other in sets)]
    hosts: dict[Switches, list[str]] = defaultdict(list)
    for host, switches in above.items():
        if switches:
            wider = [other for other in largest if switches <= other]
            hosts[wider[0] if len(wider) == 1 else switches].append(host)
    pods = _number_pods(hosts, neighbors)
    return tuple(Leaf(switches, tuple(members), pods[switches]) for switches, members in hosts.items())


def name_leaves(leaves: Iterable[Leaf], names: Mapping[str, str]) -> dict[str, Leaf]:
    """Return leaves by a name that depends on nothing but their switches, as the spec writes names.

    `names` has what each switch is called. A leaf of several switches is called like the first; names that are missing,
    too long or those of several leaves are replaced by the end of the switch's id.
    """
    listed = list(leaves)
    firsts = {leaf: min(leaf.switches, key=lambda switch: (names.get(switch, "") or "~", switch)) for leaf in listed}
    called = {leaf: _clean(names.get(first, "")) for leaf, first in firsts.items()}
    several = {name for name in called.values() if list(called.values()).count(name) > 1}
    return {
        name if name and name not in several else f"leaf-{re.sub(r'[^0-9a-z]', '', firsts[leaf])[-12:]}": leaf
        for leaf, name in called.items()
    }


def _number_pods(leaves: Iterable[Switches], neighbors: Mapping[str, Collection[str]]) -> dict[Switches, int]:
    """Return the pod of each leaf: two are in one pod if they share a switch or one that is connected to both."""
    reached = {leaf: leaf.union(*(neighbors.get(switch, ()) for switch in leaf)) for leaf in leaves}
    pods: list[Switches] = []
    for reach in reached.values():
        joined = [pod for pod in pods if pod & reach]
        pods = [pod for pod in pods if pod not in joined] + [reach.union(*joined)]
    # One leaf in each pod says nothing, and is also what it looks like if no links between switches are known.
    if len(pods) in (1, len(reached)):
        return dict.fromkeys(reached, 0)
    # In the order of the leaves, not in that of the merges.
    ordered = list(dict.fromkeys(next(pod for pod in pods if reach <= pod) for reach in reached.values()))
    return {leaf: next(n for n, pod in enumerate(ordered, 1) if reach <= pod) for leaf, reach in reached.items()}


def _clean(name: str) -> str:
    """Return a switch's name as the spec allows it: lower-case letters, digits and hyphens; empty if it cannot be."""
    short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return short if re.match(r"[a-z]", short) and len(short) <= _MAX_NAME and short not in ("all", "unplaced") else ""
