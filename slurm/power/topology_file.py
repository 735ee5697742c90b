"""topology.conf: which nodes stand under which switch, of exactly the nodes that slurm.conf has.

A node whose place is not known hangs under a switch of its own kind: Slurm refuses every job when a node is missing
from the file, or in it but not in slurm.conf. Types have three or four layers; the last one is the leaf
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-ec2-instance-topology-works.html)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from slurm.hostlist import expand, hostlist

NAME = "topology.conf"
ROOT = "all"
UNPLACED = "unplaced"
_NODES = "-nodes"

Place = tuple[str, ...]
"""Network nodes from the top down."""


def render(nodes: Collection[str], places: Mapping[str, Place]) -> str:
    members: dict[str, list[str]] = defaultdict(list)
    below: dict[str, set[str]] = defaultdict(set)
    for name in nodes:
        path = _switches(places.get(name, ()))
        members[path[-1]].append(name)
        for upper, lower in zip((ROOT, *path), path, strict=False):
            below[upper].add(lower)
    for switch in [switch for switch in members if switch in below]:
        # A leaf of one type may be a middle layer of another; Slurm's switches have nodes or switches, not both.
        leaf = f"{switch}{_NODES}"
        members[leaf] = members.pop(switch)
        below[switch].add(leaf)
    leaves = [f"SwitchName={switch} Nodes={hostlist(members[switch])}" for switch in sorted(members)]
    others = [f"SwitchName={switch} Switches={','.join(sorted(below[switch]))}" for switch in sorted(below)]
    return "\n".join(["# Written by muster: where the nodes stand.", *leaves, *others, ""])


def fitted(text: str, nodes: Collection[str]) -> str:
    """The file of other nodes: those that stay keep their place, new ones have none yet."""
    holds, joins = _parse(text)
    above = {lower: upper for upper, switches in joins.items() for lower in switches}
    return render(nodes, {name: _place(switch, above) for switch, names in holds.items() for name in names})


def problems(text: str, nodes: Collection[str]) -> list[str]:
    """Why Slurm would not take the file."""
    holds, joins = _parse(text)
    listed = [name for names in holds.values() for name in names]
    joined = [switch for switches in joins.values() for switch in switches]
    known = {*holds, *joins}
    found = [f"{name} is missing" for name in sorted(set(nodes) - set(listed))]
    found += [f"{name} is no node" for name in sorted(set(listed) - set(nodes))]
    found += [f"{one} is there twice" for one in sorted({one for one in listed if listed.count(one) > 1})]
    found += [f"switch {one} is there twice" for one in sorted({s for s in joined if joined.count(s) > 1})]
    found += [f"switch {one} has nodes and switches" for one in sorted(set(holds) & set(joins))]
    found += [f"switch {one} is not known" for one in sorted(set(joined) - known)]
    found += [f"switch {one} hangs nowhere" for one in sorted(known - set(joined) - {ROOT})]
    return found


def _place(switch: str, above: Mapping[str, str]) -> Place:
    """From a leaf up to the root, as it was told."""
    upper = above.get(switch, ROOT)
    own = () if switch in (UNPLACED, f"{upper}{_NODES}") else (switch,)
    return own if upper == ROOT else (*_place(upper, above), *own)


def _switches(place: Sequence[str]) -> tuple[str, ...]:
    return tuple(place) or (UNPLACED,)


def _parse(text: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    holds, joins = {}, {}
    for line in text.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if "Nodes" in fields:
            holds[fields["SwitchName"]] = expand(fields["Nodes"])
        elif "Switches" in fields:
            joins[fields["SwitchName"]] = tuple(fields["Switches"].split(","))
    return holds, joins
