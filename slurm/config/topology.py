"""topology.conf: which nodes are under which switch, for exactly the nodes of slurm.conf.

Nodes whose place is unknown are under the switch `unplaced`: Slurm rejects every job if a node is missing from the
file, or is in it but not in slurm.conf. The last switch of a place is the leaf. EC2 has three or four layers
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-topology-works.html).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from slurm.hostlist import expand, hostlist

NAME = "topology.conf"
ROOT = "all"
UNPLACED = "unplaced"
_NODES = "-nodes"


def render_topology(nodes: Collection[str], places: Mapping[str, tuple[str, ...]]) -> str:
    """Return the file for these nodes; a place lists the switches above a node from the top down."""
    members: dict[str, list[str]] = defaultdict(list)
    below: dict[str, set[str]] = defaultdict(set)
    for name in nodes:
        path = places.get(name) or (UNPLACED,)
        members[path[-1]].append(name)
        for upper, lower in zip((ROOT, *path), path, strict=False):
            below[upper].add(lower)
    for switch in [switch for switch in members if switch in below]:
        # A leaf of one machine type may be a middle layer of another, but a Slurm switch has either nodes or switches.
        leaf = f"{switch}{_NODES}"
        members[leaf] = members.pop(switch)
        below[switch].add(leaf)
    leaves = [f"SwitchName={switch} Nodes={hostlist(members[switch])}" for switch in sorted(members)]
    others = [f"SwitchName={switch} Switches={','.join(sorted(below[switch]))}" for switch in sorted(below)]
    return "\n".join(["# Written by muster: the nodes' places in the network.", *leaves, *others, ""])


def fit_topology(text: str, nodes: Collection[str]) -> str:
    """Return the file for a changed set of nodes: existing nodes keep their place, new ones have none yet."""
    nodes_of, switches_of = _parse(text)
    above = {lower: upper for upper, switches in switches_of.items() for lower in switches}
    places = {name: _find_place(switch, above) for switch, names in nodes_of.items() for name in names}
    return render_topology(nodes, places)


def check_topology(text: str, nodes: Collection[str]) -> list[str]:
    """Return the reasons why Slurm would reject the file."""
    nodes_of, switches_of = _parse(text)
    listed = [name for names in nodes_of.values() for name in names]
    joined = [switch for switches in switches_of.values() for switch in switches]
    switches = {*nodes_of, *switches_of}
    return [
        *(f"{name} is missing" for name in sorted(set(nodes) - set(listed))),
        *(f"{name} is not a node" for name in sorted(set(listed) - set(nodes))),
        *(f"{name} is listed twice" for name in _list_repeated(listed)),
        *(f"switch {name} is listed twice" for name in _list_repeated(joined)),
        *(f"switch {name} has nodes and switches" for name in sorted(set(nodes_of) & set(switches_of))),
        *(f"switch {name} is not defined" for name in sorted(set(joined) - switches)),
        *(f"switch {name} is under no other" for name in sorted(switches - set(joined) - {ROOT})),
    ]


def _list_repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _find_place(switch: str, above: Mapping[str, str]) -> tuple[str, ...]:
    """Return the place of the nodes under a leaf switch: the switches above them, from the top down."""
    upper = above.get(switch, ROOT)
    own = () if switch in (UNPLACED, f"{upper}{_NODES}") else (switch,)
    return own if upper == ROOT else (*_find_place(upper, above), *own)


def _parse(text: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the nodes of each leaf switch, and the switches under each other switch."""
    nodes_of, switches_of = {}, {}
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if "SwitchName" not in fields:
            continue
        if "Nodes" in fields:
            nodes_of[fields["SwitchName"]] = expand(fields["Nodes"])
        elif "Switches" in fields:
            switches_of[fields["SwitchName"]] = tuple(fields["Switches"].split(","))
    return nodes_of, switches_of
