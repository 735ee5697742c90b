"""Compare `hosts.switches` with the switches that the hosts' ports are connected to. Pure functions.

The spec decides, so that `up` gives the same topology whoever runs it and whichever cable is out. The pre-flight only
says what the spec lacks, with the lines to add.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.spec import ClusterSpec
from infra.targets.hosts.assign import Assignment, match_hosts
from infra.targets.hosts.preflight.facts import MachineFacts
from infra.targets.hosts.preflight.judge import Problem
from infra.targets.hosts.spec import Hosts
from infra.targets.hosts.switches import map_leaves
from slurm.rdma.ibnetdiscover import merge_subnets, name_switch, normalize_guid, parse_ibnetdiscover
from slurm.rdma.leaves import Leaf, Switches, group_leaves, name_leaves
from slurm.rdma.lldp import LldpError, parse_lldp
from slurm.rdma.ports import LINK_LAYERS, RdmaError, select_ports
from slurm.rdma.sysfs import RdmaPort

# A second host sees the same subnet, unless there are two.
DISCOVERERS = 2
_TOOLS: dict[str, Literal["subnet", "lldp"]] = {"infiniband": "subnet", "roce": "lldp"}
_FIXES = {
    "infiniband": "`up` installs infiniband-diags, and then `muster check` prints the lines; or write `hosts.switches`",
    "roce": "install the package lldpd and start its service on all hosts; or write `hosts.switches`",
}
Problems = Iterator[tuple[str, Problem]]


@dataclass(frozen=True)
class _Links:
    """What the tools say about the hosts of a group."""

    above: Mapping[str, Switches]
    """The switches of each host; none if its ports were not seen."""
    neighbors: Mapping[str, frozenset[str]]
    names: Mapping[str, str]


def choose_tool(spec: ClusterSpec, assigned: Sequence[Assignment], host: str) -> Literal["", "subnet", "lldp"]:
    """Return which tool a host is asked about switches: two hosts know a whole subnet, but each only its own cables."""
    group = next((entry.group for entry in assigned if entry.host == host), None)
    tool = _TOOLS.get(spec.groups[group].fabric) if group else None
    if tool is None or tool == "lldp":
        return tool or ""
    members = [entry.host for entry in assigned if entry.group == group]
    return tool if host in members[:DISCOVERERS] else ""


def judge_topology(
    spec: ClusterSpec, section: Hosts, assigned: Sequence[Assignment], facts: Mapping[str, MachineFacts]
) -> Problems:
    """Yield host and problem for leaf switches that the spec does not have, or that it has otherwise."""
    for fabric in LINK_LAYERS:
        # Groups may share leaf switches.
        groups = {e.host: e.group for e in assigned if e.group and spec.groups[e.group].fabric == fabric}
        members = {host: facts[host] for host in groups if host in facts}
        ports = {host: _select(read, fabric) for host, read in members.items()}
        if fabric == "infiniband":
            for group in dict.fromkeys(groups.values()):
                yield from _judge_views({host: read for host, read in members.items() if groups[host] == group}, ports)
            links = _read_subnets(members, ports)
        else:
            links = _read_lldp(members, ports)
        yield from _judge_tools(section, fabric, members)
        if not any(links.above.values()):
            continue
        for host, switches in links.above.items():
            if not switches and ports[host] and not members[host].neighbors_error:
                message = "no switch is known for its RDMA ports, although those of other hosts are"
                fix = "check its cables; for RoCE, that the switch sends LLDP and no firmware of the card takes it"
                yield host, Problem("warning", "host_switch_unseen", message, fix)
        yield from _compare(section, links)


def _judge_tools(section: Hosts, fabric: str, members: Mapping[str, MachineFacts]) -> Problems:
    """Warn about tools that do not answer, unless the spec has what they would say."""
    for host, read in members.items():
        error = read.neighbors_error or _check_lldp(read.lldp)
        if error and not section.switches:
            message = f"{error}, so nothing keeps jobs under one leaf switch"
            yield host, Problem("warning", "host_switches_unread", message, _FIXES[fabric])


def _judge_views(members: Mapping[str, MachineFacts], ports: Mapping[str, Sequence[RdmaPort]]) -> Problems:
    """Warn if two hosts see other switches above a host: the subnet is split, or changed meanwhile."""
    views = {host: _read_subnets({host: read}, ports) for host, read in members.items() if read.subnet}
    for (first, view), (second, other) in zip(list(views.items())[:-1], list(views.items())[1:], strict=True):
        for host in members:
            if view.above[host] != other.above[host]:
                message = (
                    f"'{first}' sees it under {_describe(view, host)}, '{second}' under {_describe(other, host)}; "
                    "allowed: the same"
                )
                fix = (
                    "if it is again so, the hosts are in separate subnets: check cables, partitions and subnet manager"
                )
                yield host, Problem("warning", "host_switches_differ", message, fix)


def _compare(section: Hosts, links: _Links) -> Problems:
    """Warn if leaf switches are missing in the spec, or if its hosts are under others than it says."""
    leaves = group_leaves(links.above, links.neighbors)
    if not section.switches and len(leaves) == 1:
        return
    fix = f"write under `hosts:`: {_suggest(section, name_leaves(leaves, links.names))}"
    if not section.switches:
        message = f"the hosts are under {len(leaves)} leaf switches, which Slurm does not know: jobs may cross them"
        for host in (host for leaf in leaves for host in leaf.hosts):
            yield host, Problem("warning", "host_switches_missing", message, fix)
        return
    written = map_leaves(section)
    actual = {host: leaf for leaf in leaves for host in leaf.hosts}
    together: dict[str, Counter[Leaf]] = defaultdict(Counter)
    for host, leaf in actual.items():
        if host in written:
            together[written[host]][leaf] += 1
    meant = {name: counted.most_common(1)[0][0] for name, counted in together.items()}
    for host, leaf in actual.items():
        name = written.get(host, "")
        if name and leaf != meant[name]:
            message = f"is not under switch '{name}' (hosts.switches): its ports lead elsewhere than those of its hosts"
            yield host, Problem("warning", "host_switch_other", message, fix)
        elif name and (same := next(other for other, of in meant.items() if of == leaf)) != name:
            message = f"switches '{same}' and '{name}' (hosts.switches) are the same switch"
            yield host, Problem("warning", "host_switch_other", message, fix)
        elif not name:
            message = "is under no switch of `hosts.switches`, but its ports lead to one"
            yield host, Problem("warning", "host_switch_other", message, fix)


def _read_subnets(members: Mapping[str, MachineFacts], ports: Mapping[str, Sequence[RdmaPort]]) -> _Links:
    subnet = merge_subnets(*(parse_ibnetdiscover(read.subnet) for read in members.values()))
    above = {
        host: frozenset(s for port in own if (s := subnet.find_switch(normalize_guid(port.node_guid), port.port)))
        for host, own in ports.items()
    }
    switches = frozenset[str]().union(*above.values())
    neighbors = {switch: subnet.list_neighbors(switch) for switch in switches}
    return _Links(above, neighbors, {switch: name_switch(subnet.nodes[switch]) for switch in switches})


def _read_lldp(members: Mapping[str, MachineFacts], ports: Mapping[str, Sequence[RdmaPort]]) -> _Links:
    above: dict[str, Switches] = {}
    names: dict[str, str] = {}
    for host, read in members.items():
        interfaces = {gid.netdev for port in ports[host] for gid in port.gids if gid.netdev}
        switches = {} if _check_lldp(read.lldp) else parse_lldp(read.lldp)
        seen = [switches[interface] for interface in interfaces if interface in switches]
        above[host] = frozenset(switch.id for switch in seen)
        names |= {switch.id: switch.name.partition(".")[0] for switch in seen}
    return _Links(above, {}, names)


def _check_lldp(output: str) -> str:
    """Return what is wrong with the output of lldpctl; empty if nothing is, or if there is none."""
    try:
        parse_lldp(output)
    except LldpError as error:
        return str(error)
    return ""


def _select(read: MachineFacts, fabric: str) -> tuple[RdmaPort, ...]:
    try:
        return select_ports(read.rdma, fabric)
    except RdmaError:
        # An error of its own (check_rdma).
        return ()


def _describe(links: _Links, host: str) -> str:
    return ", ".join(sorted(links.names.get(s) or s for s in links.above[host])) or "no switch"


def _suggest(section: Hosts, leaves: Mapping[str, Leaf]) -> str:
    """Return the field `hosts.switches` in one line of YAML."""
    lines = []
    for name, leaf in sorted(leaves.items()):
        spine = f", spine: pod{leaf.pod}" if leaf.pod else ""
        lines.append(f"{name}: {{match: [{', '.join(_shorten(section, leaf.hosts))}]{spine}}}")
    return f"switches: {{{', '.join(lines)}}}"


def _shorten(section: Hosts, hosts: Sequence[str]) -> Sequence[str]:
    """Return a pattern that matches exactly these of all hosts, or else their names."""
    prefix = hosts[0]
    while not all(host.startswith(prefix) for host in hosts):
        prefix = prefix[:-1]
    pattern = f"{prefix}*"
    return [f'"{pattern}"'] if len(hosts) > 1 and set(match_hosts([pattern], section.machines)) == set(hosts) else hosts
